// Products of groups (ops/grouped.h): by Hopper's products of warp groups where they can (grouped_hopper.cu), else by a
// plain kernel for any card, type, width and alignment, which is also what others are compared with.
//   C[i, j] (+)= scale * sum over k of A[i, k] B[k, j], A and B by their strides.
// A block has 64 x 64 of the result, a thread 4 x 4. Operands come through shared memory, 16 of the sum at a time.
// What lies outside of a group counts as zero and is not read.
#include <cuda_fp8.h>

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

constexpr int kTile = 64, kDepth = 16, kShare = 4, kSide = kTile / kShare, kThreads = kSide * kSide;

// [rows, columns] of an operand at an address; absent elements are zero. Columns may be some of those in blocks, from
// `first` on, whose blocks are so far apart.
template <class T>
struct View {
  const T* data;
  std::int64_t row_stride, column_stride;
  std::int32_t rows, columns;
  std::int64_t block_stride = 0;
  std::int32_t first = 0;
  __device__ float at(std::int32_t row, std::int32_t column) const {
    if (row >= rows || column >= columns) return 0.0f;
    if (block_stride == 0) return static_cast<float>(data[row * row_stride + column * column_stride]);
    const auto at = first + column, block = static_cast<std::int32_t>(kColumnBlock);
    return static_cast<float>(data[at / block * block_stride + row * row_stride + at % block]);
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
template <class A, class B, class Result>
__device__ void multiply(const View<A>& a, const View<B>& b, Result* c, std::int64_t stride, bool accumulate,
                         float scale) {
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
      const float sum = sums[i][j] * scale;
      to = static_cast<Result>(accumulate ? static_cast<float>(to) + sum : sum);
    }
  }
}

// Scales of operands in eight bits, or null: B has one a group where it is a group's.
struct Scales {
  const Fp8Scale *a, *b;
  __device__ float of(std::int32_t group) const { return a ? a->inverse * b[group].inverse : 1.0f; }
};

// y and dx: c[i] (+)= a[i] times the matrix of i's group, whose element (column of c, depth) is at these strides.
// Blocks in x are tiles of rows, at least as many as there can be, and in y tiles of columns.
template <class A, class B, class T>
__global__ void __launch_bounds__(kThreads)
    rows_times_matrices(const A* a, const B* matrices, const std::int32_t* offsets, T* c, std::int32_t groups,
                        std::int32_t n, std::int32_t depth, std::int32_t columns, std::int64_t column_stride,
                        std::int64_t depth_stride, bool accumulate, Scales scales) {
  TilesOfRows tiles(offsets, groups, kTile, kTile, 1);
  GroupTile tile;
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.y) * kTile;
  if (tiles.seek(static_cast<std::int32_t>(blockIdx.x), tile)) {
    const View<A> rows{a + static_cast<std::int64_t>(tile.row) * depth, depth, 1, min(tile.end - tile.row, kTile),
                       depth};
    const View<B> matrix{matrices + static_cast<std::int64_t>(tile.group) * depth * columns + column * column_stride,
                         column_stride, depth_stride, min(columns - column, kTile), depth};
    multiply(rows, matrix, c + static_cast<std::int64_t>(tile.row) * columns + column, columns, accumulate,
             scales.of(tile.group));
  }
  if (accumulate) return;  // rows without a group become zeros
  const std::int64_t blocks = static_cast<std::int64_t>(gridDim.x) * gridDim.y;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  std::int64_t i = static_cast<std::int64_t>(offsets[groups]) * columns + block * kThreads + threadIdx.x;
  for (; i < static_cast<std::int64_t>(n) * columns; i += blocks * kThreads) c[i] = T(0.0f);
}

// How operands of a sum over rows lie: [n, d], or turned over, in blocks (ops/fp8.h).
enum class Lie { by_rows, in_blocks };
template <class T>
__device__ View<T> view_of(const T* data, Lie lie, std::int32_t d, std::int32_t begin, std::int32_t rows,
                           std::int32_t column) {
  const std::int32_t columns = min(d - column, kTile);
  if (lie == Lie::by_rows) return {data + static_cast<std::int64_t>(begin) * d + column, 1, d, columns, rows};
  return {data + column * kColumnBlock, kColumnBlock, 1, columns, rows, d * kColumnBlock, begin};
}

// dweight[g] (+)= dy^T x over the rows of g. Blocks: tiles of x's columns, tiles of dy's columns, groups.
template <class A, class B>
__global__ void __launch_bounds__(kThreads)
    sum_over_groups(const A* dy, const B* x, const std::int32_t* offsets, float* dweight, std::int32_t m,
                    std::int32_t k, bool accumulate, Lie lie, Scales scales) {
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.x) * kTile, group = blockIdx.z;
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.y) * kTile;
  const std::int32_t begin = offsets[group], rows = offsets[group + 1] - begin;
  const View<A> left = view_of(dy, lie, m, begin, rows, row);
  const View<B> right = view_of(x, lie, k, begin, rows, column);
  multiply(left, right, dweight + (static_cast<std::int64_t>(group) * m + row) * k + column, k, accumulate,
           scales.of(0));
}

template <class F>
void for_type(DType dtype, const F& f) {
  for_type_and_width(dtype, false, [&]<class T, int kWidth>() { f.template operator()<T>(); });
}
std::int32_t small(std::int64_t i) { return static_cast<std::int32_t>(i); }

// c = a times the matrices' transposes (as they are stored: columns of c by depth), or times the matrices (turned).
template <class A, class B, class C>
void plain_rows(const Tensor& a, const Tensor& weight, const Tensor& offsets, const Tensor& c, bool turned,
                bool accumulate, Scales scales, const Launch& launch) {
  const std::int64_t groups = offsets.elements() - 1, n = a.rows(), depth = a.columns(), columns = c.columns();
  const dim3 blocks(blocks_for(n + groups * kTile, kTile), blocks_for(columns, kTile));
  rows_times_matrices<A, B, C><<<blocks, kThreads, 0, launch.stream>>>(
      a.as<A>(), weight.as<B>(), offsets.i32(), c.as<C>(), small(groups), small(n), small(depth), small(columns),
      turned ? 1 : depth, turned ? columns : 1, accumulate, scales);
  REDLINE_LAUNCHED();
}
template <class A, class B>
void plain_sums(const Tensor& dy, const Tensor& x, const Tensor& offsets, const Tensor& dweight, Lie lie,
                bool accumulate, Scales scales, const Launch& launch) {
  const std::int64_t m = dweight.shape[1], k = dweight.shape[2];
  const dim3 blocks(blocks_for(k, kTile), blocks_for(m, kTile), static_cast<unsigned>(offsets.elements() - 1));
  sum_over_groups<A, B><<<blocks, kThreads, 0, launch.stream>>>(dy.as<A>(), x.as<B>(), offsets.i32(), dweight.f32(),
                                                                small(m), small(k), accumulate, lie, scales);
  REDLINE_LAUNCHED();
}

void plain(const GroupedLinear<Tensor>& op, const Launch& launch) {
  for_type(op.y.dtype,
           [&]<class T>() { plain_rows<T, T, T>(op.x, op.weight, op.offsets, op.y, false, false, {}, launch); });
}
void plain(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) {
  for_type(op.dx.dtype, [&]<class T>() {
    plain_rows<T, T, T>(op.dy, op.weight, op.offsets, op.dx, true, op.accumulate, {}, launch);
  });
}
void plain(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) {
  for_type(op.x.dtype, [&]<class T>() {
    plain_sums<T, T>(op.dy, op.x, op.offsets, op.dweight, Lie::by_rows, op.accumulate, {}, launch);
  });
}
void plain(const GroupedFp8Product<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.b.dtype == DType::e4m3 && op.c.dtype == DType::bf16, "a product of {} to {}", name_of(op.b.dtype),
                name_of(op.c.dtype));
  const Scales scales{op.a_scale.as<Fp8Scale>(), op.b_scales.as<Fp8Scale>()};
  const auto rows = [&]<class A>() {
    plain_rows<A, __nv_fp8_e4m3, bf16>(op.a, op.b, op.offsets, op.c, false, op.accumulate, scales, launch);
  };
  op.a.dtype == DType::e5m2 ? rows.template operator()<__nv_fp8_e5m2>() : rows.template operator()<__nv_fp8_e4m3>();
}
void plain(const GroupedFp8WeightGrad<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.dy.dtype == DType::e5m2 && op.x.dtype == DType::e4m3, "a product of {} and {}", name_of(op.dy.dtype),
                name_of(op.x.dtype));
  plain_sums<__nv_fp8_e5m2, __nv_fp8_e4m3>(op.dy, op.x, op.offsets, op.dweight, Lie::in_blocks, op.accumulate,
                                           {op.dy_scale.as<Fp8Scale>(), op.x_scale.as<Fp8Scale>()}, launch);
}

const Tensor& input(const GroupedLinear<Tensor>& op) { return op.x; }
const Tensor& input(const GroupedLinearInputGrad<Tensor>& op) { return op.dy; }
const Tensor& input(const GroupedLinearWeightGrad<Tensor>& op) { return op.x; }
const Tensor& input(const GroupedFp8Product<Tensor>& op) { return op.a; }
const Tensor& input(const GroupedFp8WeightGrad<Tensor>& op) { return op.x; }

struct SlowReasons {  // of a card, each told once
  std::set<std::string> told;
};

template <class Op>
void choose(const Op& op, const Launch& launch) {
  const std::string why = hopper_why_not(op, launch);
  if (why.empty()) return hopper_run(op, launch);
  if (input(op).dtype != DType::f32 && launch.own->of<SlowReasons>().told.insert(why).second)
    log::warn("{} in {} goes through a plain kernel, which is many times slower than that for Hopper: {}", Op::kName,
              name_of(input(op).dtype), why);
  plain(op, launch);
}

}  // namespace

void run(const GroupedLinear<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedLinearInputGrad<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedLinearWeightGrad<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedFp8Product<Tensor>& op, const Launch& launch) { choose(op, launch); }
void run(const GroupedFp8WeightGrad<Tensor>& op, const Launch& launch) { choose(op, launch); }

}  // namespace redline::ops::cuda
