// Cuts packed documents into tiles, longest documents first: a counting sort of documents by their number of tiles.
//   tiles(d) = ceil(length(d) / tile);  first(d) = sum of tiles over the documents that come before d in that order
// One block a plan; a thread takes every kThreads-th document, and one bucket of the counting sort.
#include "ops/cuda/attention_plan.cuh"

namespace redline::ops::cuda {
namespace {

constexpr int kThreads = 1024, kBuckets = kThreads, kWarp = 32, kMaxPlans = 2;

struct PlanArguments {
  const int* doc_offsets;
  int capacity;
  Plan plans[kMaxPlans];
};

// Documents of kBuckets tiles and more share the first bucket.
__device__ int bucket_of(int tiles) { return kBuckets - min(tiles, kBuckets); }

__global__ __launch_bounds__(kThreads) void plan_kernel(const __grid_constant__ PlanArguments a) {
  __shared__ int bucket[kBuckets], warp_sums[kThreads / kWarp];
  const Plan& plan = a.plans[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const auto tiles_of = [&](int d) { return (a.doc_offsets[d + 1] - a.doc_offsets[d] + plan.tile - 1) / plan.tile; };

  bucket[thread] = 0;
  __syncthreads();
  for (int d = thread; d < a.capacity; d += kThreads) {
    if (const int tiles = tiles_of(d); tiles > 0) atomicAdd(&bucket[bucket_of(tiles)], tiles);
  }
  __syncthreads();

  const int tiles_here = bucket[thread];
  int sum = tiles_here;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int below = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += below;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sums[w];
  bucket[thread] = sum - tiles_here;
  if (thread == kThreads - 1) {
    *plan.count = sum;
    *plan.next = 2 * plan.blocks;  // the first two of each are settled
  }
  __syncthreads();

  // Documents of one bucket stand in the order in which threads come by.
  for (int d = thread; d < a.capacity; d += kThreads) {
    const int tiles = tiles_of(d);
    if (tiles <= 0) continue;
    const int first = atomicAdd(&bucket[bucket_of(tiles)], tiles);
    for (int i = 0; i < tiles; ++i) plan.slots[first + i] = {a.doc_offsets[d], a.doc_offsets[d + 1], first, tiles};
  }
}

}  // namespace

void plan_documents(const Tensor& doc_offsets, std::int64_t n, std::span<Plan> plans,
                    const device::cuda::Launch& launch) {
  REDLINE_CHECK(plans.size() <= kMaxPlans, "one block a plan");
  const std::int64_t capacity = doc_offsets.elements() - 1;
  PlanArguments a{.doc_offsets = doc_offsets.i32(), .capacity = static_cast<int>(capacity), .plans = {}};
  std::byte* free = launch.workspace;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Plan& plan = plans[i];
    plan.next = reinterpret_cast<int*>(free);
    plan.count = plan.next + 1;
    plan.slots = reinterpret_cast<PlannedDocument*>(free) + 1;
    // Every document ends in at most one tile that is not full.
    free = reinterpret_cast<std::byte*>(plan.slots + n / plan.tile + capacity);
    a.plans[i] = plan;
  }
  REDLINE_CHECK(free - launch.workspace <= launch.workspace_bytes,
                "attention's list of tiles needs {} bytes of workspace, there are {}", free - launch.workspace,
                launch.workspace_bytes);
  plan_kernel<<<static_cast<unsigned>(plans.size()), kThreads, 0, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
