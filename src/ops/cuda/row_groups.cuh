// Sums over rows: kRowGroups blocks have a contiguous group of rows and a row of partial sums each; the groups are then
// added in order.
#pragma once

#include "device/cuda/overlap.cuh"
#include "device/cuda/vectors.cuh"
#include "ops/add_norm.h"

namespace redline::ops::cuda {

// The end of a kernel whose block has a group of rows, threadIdx.y several at once: its row of `partial` is the sum of
// the rows that `store(to)` writes for each threadIdx.y. `shared` held rows read ahead; rounds past the end may still
// be under way.
template <class Store>
__device__ void sum_over_block_rows(std::byte* shared, std::int32_t columns, float* partial, const Store& store) {
  device::cuda::await_copies();
  __syncthreads();                                      // of all threads
  auto* const rows = reinterpret_cast<float*>(shared);  // [blockDim.y, columns]
  partial += static_cast<std::int64_t>(blockIdx.x) * columns;
  store(blockDim.y == 1 ? partial : rows + threadIdx.y * columns);
  if (blockDim.y == 1) return;
  __syncthreads();
  for (std::int32_t j = threadIdx.y * blockDim.x + threadIdx.x; j < columns; j += blockDim.x * blockDim.y) {
    float sum = 0;
    for (unsigned row = 0; row < blockDim.y; ++row) sum += rows[row * columns + j];
    partial[j] = sum;
  }
}

inline constexpr int kGroupSlices = 12;

// A block has 32 columns. A slice of kRowGroups / kGroupSlices groups is added by one thread a column, then the slices.
static __global__ void __launch_bounds__(device::cuda::kWarp* kGroupSlices)
    add_row_groups(const float* partial, std::int32_t columns, std::int32_t split, float* first, float* second,
                   bool accumulate) {
  constexpr int kGroups = kRowGroups / kGroupSlices;
  __shared__ float slices[kGroupSlices][device::cuda::kWarp];
  device::cuda::let_next_kernel_start();
  device::cuda::await_kernel_before();
  const int column = static_cast<int>(blockIdx.x) * device::cuda::kWarp + static_cast<int>(threadIdx.x);
  float* to = column < split ? first + column : second + (column - split);
  const bool writes = threadIdx.y == 0 && column < columns;
  const float before = writes && accumulate ? *to : 0.0f;  // read along with the sums, not after them
  if (column < columns) {
    const float* from = partial + static_cast<std::int64_t>(threadIdx.y) * kGroups * columns + column;
    float sum = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) sum += from[static_cast<std::int64_t>(g) * columns];
    slices[threadIdx.y][threadIdx.x] = sum;
  }
  __syncthreads();
  if (!writes) return;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kGroupSlices; ++s) sum += slices[s][threadIdx.x];
  *to = accumulate ? before + sum : sum;
}

// first (+)= the sums of the first `split` columns of partial, second (+)= those of the rest. The kernel before, which
// writes `partial`, calls let_next_kernel_start().
inline void sum_row_groups(const Tensor& partial, std::int64_t split, float* first, float* second, bool accumulate,
                           const device::cuda::Launch& launch) {
  static_assert(kRowGroups % kGroupSlices == 0);
  const std::int64_t columns = partial.columns();
  const dim3 threads(device::cuda::kWarp, kGroupSlices);
  device::cuda::launch_early(launch, add_row_groups, device::cuda::blocks_for(columns, device::cuda::kWarp), threads, 0,
                             partial.f32(), static_cast<std::int32_t>(columns), static_cast<std::int32_t>(split), first,
                             second, accumulate);
}

}  // namespace redline::ops::cuda
