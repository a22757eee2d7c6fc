// Cuts packed documents into tiles, longest documents first: a counting sort of documents by their number of tiles.
// One block a size of tiles; a thread takes every kThreads-th document, and one bucket of the counting sort.
#include <algorithm>
#include <iterator>

#include "ops/cuda/document_tiles.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

constexpr int kThreads = 1024, kBuckets = kThreads, kWarp = 32, kSizes = static_cast<int>(std::size(kTileSizes));

struct TileArguments {
  const int* doc_offsets;
  int capacity;
  TileList lists[kSizes];
};

// Documents of kBuckets tiles and more share the first bucket.
__device__ int bucket_of(int tiles) { return kBuckets - min(tiles, kBuckets); }

__global__ __launch_bounds__(kThreads) void tile_kernel(const __grid_constant__ TileArguments a) {
  __shared__ int bucket[kBuckets], warp_sums[kThreads / kWarp];
  const TileList& list = a.lists[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const auto tiles_of = [&](int d) { return (a.doc_offsets[d + 1] - a.doc_offsets[d] + list.tile - 1) / list.tile; };

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
    *list.count = sum;
    list.taken[0] = list.taken[1] = 0;
  }
  __syncthreads();

  // Documents of one bucket stand in the order in which threads come by.
  for (int d = thread; d < a.capacity; d += kThreads) {
    const int tiles = tiles_of(d);
    if (tiles <= 0) continue;
    const int first = atomicAdd(&bucket[bucket_of(tiles)], tiles);
    for (int i = 0; i < tiles; ++i) list.slots[first + i] = {a.doc_offsets[d], a.doc_offsets[d + 1], first, tiles};
  }
}

}  // namespace

TileList tile_list(const Tensor& tiles, std::int64_t tokens, std::int64_t capacity, std::int64_t tile) {
  REDLINE_CHECK(tiles.present() && tiles.bytes() >= tile_bytes(tokens, capacity), "attention has no list of tiles");
  std::byte* list = tiles.as<std::byte>();
  for (const std::int64_t size : kTileSizes) {
    if (size == tile) {
      auto* const head = reinterpret_cast<int*>(list);
      return {static_cast<int>(tile), head, head + 2, reinterpret_cast<PlannedDocument*>(list) + 1};
    }
    list += tile_list_bytes(tokens, capacity, size);
  }
  fail_machine("tile_list: nobody cuts documents into tiles of {}", tile);
}

void run(const DocumentTiles<Tensor>& op, const Launch& launch) {
  const std::int64_t capacity = op.doc_offsets.elements() - 1;
  TileArguments a{.doc_offsets = op.doc_offsets.i32(), .capacity = static_cast<int>(capacity), .lists = {}};
  std::ranges::transform(kTileSizes, a.lists,
                         [&](std::int64_t tile) { return tile_list(op.tiles, op.tokens, capacity, tile); });
  tile_kernel<<<kSizes, kThreads, 0, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
