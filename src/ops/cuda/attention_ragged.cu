// From doc_offsets: lengths[d] = end - begin, qkv[d] = begin * qkv_width, out[d] = begin * out_width, lse[d] = begin.
// The tail (tokens after the last document) is cleared: rows of bf16 and one number a head.
// Threads of all blocks share documents, then the tail's elements, by stride.
#include "device/cuda/vectors.cuh"
#include "ops/cuda/attention_ragged.h"

namespace redline::ops::cuda {
namespace {

constexpr int kThreads = 256, kBlocks = 32, kVector = 8;  // elements of bf16 that one thread clears at a time

struct RaggedArguments {
  const std::int32_t* doc_offsets;
  RaggedOffsets offsets;
  __nv_bfloat16* rows;
  float* lse;
  std::int64_t n;
  std::int32_t capacity, qkv_width, out_width, row_width, heads;
};

__global__ __launch_bounds__(kThreads) void ragged_kernel(const __grid_constant__ RaggedArguments a) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  constexpr std::int64_t kStride = kThreads * kBlocks;
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

__global__ __launch_bounds__(kThreads) void lse_by_rows_kernel(const float* lse, float* to, std::int64_t n,
                                                               std::int64_t heads, std::int64_t length) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;  // of `to`
  if (i >= n * heads) return;
  const std::int64_t row = i / (heads * length), head = i / length % heads;
  to[i] = lse[head * n + row * length + i % length];
}

}  // namespace

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
  ragged_kernel<<<kBlocks, kThreads, 0, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

void lse_by_rows(const Tensor& lse, std::int64_t length, float* to, const device::cuda::Launch& launch) {
  const std::int64_t blocks = (lse.elements() + kThreads - 1) / kThreads;
  lse_by_rows_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, launch.stream>>>(lse.f32(), to, lse.columns(),
                                                                                    lse.rows(), length);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
