// dbias (+)= the sum of dy over its rows. A block has a group of rows (row_groups.cuh) and a strip of columns, a thread
// a vector of columns of every kRowsAtOnce-th row: dy is read once.
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kRowsAtOnce = 8;

template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kRowsAtOnce)
    sum_rows(const T* dy, std::int64_t rows, std::int64_t rows_of_group, std::int32_t columns, float* partial) {
  __shared__ float sums[kRowsAtOnce][kWarp * kWidth];
  let_next_kernel_start();
  const std::int32_t strip = static_cast<std::int32_t>(blockIdx.y) * kWarp * kWidth;
  const std::int32_t own = static_cast<std::int32_t>(threadIdx.x) * kWidth;
  const std::int64_t begin = blockIdx.x * rows_of_group;
  const std::int64_t end = min(begin + rows_of_group, rows);
  float sum[kWidth] = {};
  if (strip + own < columns) {
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.y; i < end; i += kRowsAtOnce) {
      const auto x = load<kWidth>(dy + i * columns + strip + own);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += x[e];
    }
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sums[threadIdx.y][own + e] = sum[e];
  __syncthreads();
  const std::int32_t thread = static_cast<std::int32_t>(threadIdx.y) * kWarp + static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t j = thread; j < kWarp * kWidth; j += kWarp * kRowsAtOnce) {
    if (strip + j >= columns) return;
    float all = 0;
#pragma unroll
    for (int row = 0; row < kRowsAtOnce; ++row) all += sums[row][j];
    partial[static_cast<std::int64_t>(blockIdx.x) * columns + strip + j] = all;
  }
}

}  // namespace

void run(const BiasGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), m = op.dy.columns();
  for_type_and_width(op.dy.dtype, in_vectors(m, {op.dy}), [&]<class T, int kWidth>() {
    const dim3 blocks(kRowGroups, blocks_for(m, kWarp * kWidth)), threads(kWarp, kRowsAtOnce);
    sum_rows<T, kWidth><<<blocks, threads, 0, launch.stream>>>(op.dy.as<T>(), n, ceil_div(n, kRowGroups),
                                                               static_cast<std::int32_t>(m), op.partial.f32());
  });
  REDLINE_LAUNCHED();
  sum_row_groups(op.partial, m, op.dbias.f32(), nullptr, op.accumulate, launch);
}

}  // namespace redline::ops::cuda
