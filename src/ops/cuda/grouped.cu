// Products of groups (ops/grouped.h): by Hopper's products of warp groups where they can (grouped_hopper.cu), else by a
// plain kernel for any card, type, width and alignment, which is also what others are compared with.
//   C[i, j] (+)= sum over k of A[i, k] B[k, j], A and B by their strides.
// A block has 64 x 64 of the result, a thread 4 x 4. Operands come through shared memory, 16 of the sum at a time.
// What lies outside of a group counts as zero and is not read.
#include <set>
#include <string>

#include "base/log.h"
#include "device/cuda/handles.h"
#include "device/cuda/vectors.cuh"
#include "ops/cuda/grouped_tiles.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr bool kByWarpGroups = true;  // false: the plain kernel computes everything

constexpr int kTile = 64, kDepth = 16, kShare = 4, kSide = kTile / kShare, kThreads = kSide * kSide;

// [rows, columns] of an operand at an address; absent elements are zero.
template <class T>
struct View {
  const T* data;
  std::int64_t row_stride, column_stride;
  std::int32_t rows, columns;
  __device__ float at(std::int32_t row, std::int32_t column) const {
    if (row >= rows || column >= columns) return 0.0f;
    return static_cast<float>(data[row * row_stride + column * column_stride]);
  }
};

// kTile x kDepth of A or, turned over, of B. Threads take neighbours where they lie beside each other.
template <class T>
__device__ void fetch(float (&to)[kDepth][kTile + 4], const View<T>& from, std::int32_t first) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const bool along_rows = from.column_stride != 1;
    const int row = along_rows ? i % kTile : i / kDepth, column = along_rows ? i / kTile : i % kDepth;
    to[column][row] = from.at(row, first + column);
  }
}

// A is [rows, depth], B is given as [columns, depth].
template <class T, class Result>
__device__ void multiply(const View<T>& a, const View<T>& b, Result* c, std::int64_t stride, bool accumulate) {
  __shared__ float left[kDepth][kTile + 4], right[kDepth][kTile + 4];
  const int row = static_cast<int>(threadIdx.x) / kSide * kShare, column = static_cast<int>(threadIdx.x) % kSide;
  float sums[kShare][kShare] = {};
  for (std::int32_t k = 0; k < a.columns; k += kDepth) {
    fetch(left, a, k);
    fetch(right, b, k);
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
#pragma unroll
        for (int j = 0; j < kShare; ++j)
          sums[i][j] = fmaf(left[depth][row + i], right[depth][column + j * kSide], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      if (row + i >= a.rows || column + j * kSide >= b.rows) continue;
      Result& to = c[(row + i) * stride + column + j * kSide];
      to = static_cast<Result>(accumulate ? static_cast<float>(to) + sums[i][j] : sums[i][j]);
    }
  }
}

// y and dx: c[i] (+)= a[i] times the matrix of i's group, whose element (column of c, depth) is at these strides.
// Blocks in x are tiles of rows, at least as many as there can be, and in y tiles of columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rows_times_matrices(const T* a, const T* matrices, const std::int32_t* offsets, T* c, std::int32_t groups,
                        std::int32_t n, std::int32_t depth, std::int32_t columns, std::int64_t column_stride,
                        std::int64_t depth_stride, bool accumulate) {
  TilesOfRows tiles(offsets, groups, kTile, kTile, 1);
  GroupTile tile;
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.y) * kTile;
  if (tiles.seek(static_cast<std::int32_t>(blockIdx.x), tile)) {
    const View<T> rows{a + static_cast<std::int64_t>(tile.row) * depth, depth, 1, min(tile.end - tile.row, kTile),
                       depth};
    const View<T> matrix{matrices + static_cast<std::int64_t>(tile.group) * depth * columns + column * column_stride,
                         column_stride, depth_stride, min(columns - column, kTile), depth};
    multiply(rows, matrix, c + static_cast<std::int64_t>(tile.row) * columns + column, columns, accumulate);
  }
  if (accumulate) return;  // rows without a group become zeros
  const std::int64_t blocks = static_cast<std::int64_t>(gridDim.x) * gridDim.y;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  std::int64_t i = static_cast<std::int64_t>(offsets[groups]) * columns + block * kThreads + threadIdx.x;
  for (; i < static_cast<std::int64_t>(n) * columns; i += blocks * kThreads) c[i] = T(0.0f);
}

// dweight[g] (+)= dy^T x over the rows of g. Blocks: tiles of x's columns, tiles of dy's columns, groups.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_over_groups(const T* dy, const T* x, const std::int32_t* offsets, float* dweight, std::int32_t m,
                    std::int32_t k, bool accumulate) {
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.x) * kTile, group = blockIdx.z;
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.y) * kTile;
  const std::int32_t begin = offsets[group], rows = offsets[group + 1] - begin;
  const View<T> left{dy + static_cast<std::int64_t>(begin) * m + row, 1, m, min(m - row, kTile), rows};
  const View<T> right{x + static_cast<std::int64_t>(begin) * k + column, 1, k, min(k - column, kTile), rows};
  multiply(left, right, dweight + (static_cast<std::int64_t>(group) * m + row) * k + column, k, accumulate);
}

template <class F>
void for_type(DType dtype, const F& f) {
  for_type_and_width(dtype, false, [&]<class T, int kWidth>() { f.template operator()<T>(); });
}
std::int32_t small(std::int64_t i) { return static_cast<std::int32_t>(i); }

// c = a times the matrices' transposes (as they are stored: columns of c by depth), or times the matrices (turned).
void plain_rows(const Tensor& a, const Tensor& weight, const Tensor& offsets, const Tensor& c, bool turned,
                bool accumulate, const Launch& launch) {
  const std::int64_t groups = offsets.elements() - 1, n = a.rows(), depth = a.columns(), columns = c.columns();
  const dim3 blocks(blocks_for(n + groups * kTile, kTile), blocks_for(columns, kTile));
  for_type(c.dtype, [&]<class T>() {
    rows_times_matrices<T><<<blocks, kThreads, 0, launch.stream>>>(
        a.as<T>(), weight.as<T>(), offsets.i32(), c.as<T>(), small(groups), small(n), small(depth), small(columns),
        turned ? 1 : depth, turned ? columns : 1, accumulate);
  });
  REDLINE_LAUNCHED();
}

void plain(const GroupedLinear<Tensor>& op, const Launch& launch) {
  plain_rows(op.x, op.weight, op.offsets, op.y, false, false, launch);
}
void plain(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) {
  plain_rows(op.dy, op.weight, op.offsets, op.dx, true, op.accumulate, launch);
}
void plain(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t m = op.dy.columns(), k = op.x.columns();
  const dim3 blocks(blocks_for(k, kTile), blocks_for(m, kTile), static_cast<unsigned>(op.offsets.elements() - 1));
  for_type(op.x.dtype, [&]<class T>() {
    sum_over_groups<T><<<blocks, kThreads, 0, launch.stream>>>(op.dy.as<T>(), op.x.as<T>(), op.offsets.i32(),
                                                               op.dweight.f32(), small(m), small(k), op.accumulate);
  });
  REDLINE_LAUNCHED();
}

const Tensor& input(const GroupedLinear<Tensor>& op) { return op.x; }
const Tensor& input(const GroupedLinearInputGrad<Tensor>& op) { return op.dy; }
const Tensor& input(const GroupedLinearWeightGrad<Tensor>& op) { return op.x; }

struct SlowReasons {  // of a card, each told once
  std::set<std::string> told;
};

template <class Op>
void choose(const Op& op, const Launch& launch) {
  const std::string why = kByWarpGroups ? hopper_why_not(op, launch) : "it is switched off";
  if (why.empty()) return hopper_run(op, launch);
  if (input(op).dtype == DType::bf16 && launch.own->of<SlowReasons>().told.insert(why).second)
    log::warn("{} in bf16 goes through a plain kernel, which is many times slower than that for Hopper: {}", Op::kName,
              why);
  plain(op, launch);
}

}  // namespace

void run(const GroupedLinear<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) { choose(op, launch); }

}  // namespace redline::ops::cuda
