// Cuts packed documents into tiles, longest documents first: a counting sort of documents by their number of tiles.
// One block a size of tiles; a thread takes every kThreads-th document, and one bucket of the counting sort.
// For a library, from doc_offsets: lengths[d] = end - begin, qkv[d] = begin * qkv_width, out[d] = begin * out_width,
// lse[d] = begin. The tail (tokens after the last document) is cleared: rows of bf16 and one number a head. Threads of
// all blocks share documents, then the tail's elements, by stride.
#include <cuda_bf16.h>

#include <algorithm>
#include <iterator>

#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_documents.cuh"
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

constexpr int kRaggedThreads = 256, kRaggedBlocks = 32;
constexpr int kVector = 8;  // elements of bf16 that one thread clears at a time

struct RaggedArguments {
  const std::int32_t* doc_offsets;
  RaggedOffsets offsets;
  __nv_bfloat16* rows;
  float* lse;
  std::int64_t n;
  std::int32_t capacity, qkv_width, out_width, row_width, heads;
};

__global__ __launch_bounds__(kRaggedThreads) void ragged_kernel(const __grid_constant__ RaggedArguments a) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kRaggedThreads + threadIdx.x;
  constexpr std::int64_t kStride = kRaggedThreads * kRaggedBlocks;
  for (std::int64_t d = thread; d <= a.capacity; d += kStride) {
    const std::int32_t begin = a.doc_offsets[d];
    a.offsets.qkv[d] = begin * a.qkv_width;
    a.offsets.out[d] = begin * a.out_width;
    a.offsets.lse[d] = begin;
    if (d < a.capacity) a.offsets.lengths[d] = a.doc_offsets[d + 1] - begin;
  }
  const std::int64_t end = a.doc_offsets[a.capacity], tail = a.n - end;
  uint4* const first = reinterpret_cast<uint4*>(a.rows + end * a.row_width);
  for (std::int64_t i = thread; i < tail * a.row_width / kVector; i += kStride) first[i] = {0, 0, 0, 0};
  if (!a.lse) return;
  for (std::int64_t i = thread; i < tail * a.heads; i += kStride) a.lse[i / tail * a.n + end + i % tail] = 0;
}

__global__ __launch_bounds__(kRaggedThreads) void lse_by_rows_kernel(const float* lse, float* to, std::int64_t n,
                                                                     std::int64_t heads, std::int64_t length) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRaggedThreads + threadIdx.x;  // of `to`
  if (i >= n * heads) return;
  const std::int64_t row = i / (heads * length), head = i / length % heads;
  to[i] = lse[head * n + row * length + i % length];
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
  fail_machine("tile_list: documents are not cut into tiles of {}", tile);
}

void run(const DocumentTiles<Tensor>& op, const Launch& launch) {
  const std::int64_t capacity = op.doc_offsets.elements() - 1;
  TileArguments a{.doc_offsets = op.doc_offsets.i32(), .capacity = static_cast<int>(capacity), .lists = {}};
  std::ranges::transform(kTileSizes, a.lists,
                         [&](std::int64_t tile) { return tile_list(op.tiles, op.tokens, capacity, tile); });
  tile_kernel<<<kSizes, kThreads, 0, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

RaggedOffsets::RaggedOffsets(std::byte* memory, std::int64_t capacity) {
  lengths = reinterpret_cast<std::int32_t*>(memory);
  qkv = lengths + capacity;
  out = qkv + capacity + 1;
  lse = out + capacity + 1;
}

void prepare_ragged(const Tensor& doc_offsets, const HeadLayout& layout, const RaggedOffsets& offsets,
                    const Tensor& rows, const Tensor& lse, const device::cuda::Launch& launch) {
  REDLINE_CHECK(rows.dtype == DType::bf16 && rows.columns() % kVector == 0, "rows of {}", rows.shape.str());
  const RaggedArguments a{.doc_offsets = doc_offsets.i32(),
                          .offsets = offsets,
                          .rows = rows.as<__nv_bfloat16>(),
                          .lse = lse.data ? lse.f32() : nullptr,
                          .n = rows.rows(),
                          .capacity = static_cast<std::int32_t>(doc_offsets.elements() - 1),
                          .qkv_width = static_cast<std::int32_t>(layout.qkv_width()),
                          .out_width = static_cast<std::int32_t>(layout.heads * layout.head_dim),
                          .row_width = static_cast<std::int32_t>(rows.columns()),
                          .heads = static_cast<std::int32_t>(layout.heads)};
  ragged_kernel<<<kRaggedBlocks, kRaggedThreads, 0, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

void lse_by_rows(const Tensor& lse, std::int64_t length, float* to, const device::cuda::Launch& launch) {
  const std::int64_t blocks = (lse.elements() + kRaggedThreads - 1) / kRaggedThreads;
  lse_by_rows_kernel<<<static_cast<unsigned>(blocks), kRaggedThreads, 0, launch.stream>>>(lse.f32(), to, lse.columns(),
                                                                                          lse.rows(), length);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
