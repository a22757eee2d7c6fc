// Linear layers: three products over the same weight, y = x W^T + b, dx = dy W, dW (+)= dy^T x. All row-major as
// stored; the work is gemm's, but for the few rows of a decoding step.
#include <algorithm>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// A decoding step has few rows: each weight is used so few times that packing it for OpenBLAS costs more than the
// products. A row's bits do not depend on how many others there are.
constexpr std::int64_t kFewRows = 8;

// kRows rows of x times one row of the weight, each summed as lane_sum does. Four share what is loaded of the weight
// and still keep their sums in registers.
constexpr std::int64_t kRowsAtOnce = 4;

template <int kRows>
void dot_rows(const float* x, const float* weight, std::int64_t k, float* y, std::int64_t y_stride) {
  float lanes[kRows][kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= k; j += kLanes) {
    for (int r = 0; r < kRows; ++r) {
#pragma omp simd
      for (std::int64_t l = 0; l < kLanes; ++l) lanes[r][l] += x[r * k + j + l] * weight[j + l];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t l = 0; j + l < k; ++l) lanes[r][l] += x[r * k + j + l] * weight[j + l];
    float sum = 0;
    for (std::int64_t l = 0; l < kLanes; ++l) sum += lanes[r][l];
    y[r * y_stride] = sum;
  }
}

void multiply_few_rows(const Linear<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), k = op.x.columns(), m = op.y.columns();
  constexpr decltype(&dot_rows<1>) kDots[] = {dot_rows<1>, dot_rows<2>, dot_rows<3>, dot_rows<4>};
  for_rows(pool, m, k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      for (std::int64_t i = 0; i < n; i += kRowsAtOnce)
        kDots[std::min(kRowsAtOnce, n - i) - 1](op.x.f32() + i * k, op.weight.f32() + j * k, k, op.y.f32() + i * m + j,
                                                m);
    }
  });
}

}  // namespace

void add_bias(const Tensor& bias, const Tensor& y, ThreadPool& pool) {
  if (!bias.present()) return;
  const std::int64_t m = y.columns();
  for_rows(pool, y.rows(), m, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < m; ++j) y.f32()[i * m + j] += bias.f32()[j];
  });
}

void run(const Linear<Tensor>& op, ThreadPool& pool) {
  if (op.x.rows() <= kFewRows)
    multiply_few_rows(op, pool);
  else
    gemm(product(matrix(op.x), turned(matrix(op.weight)), op.y.f32(), op.y.columns()), pool);
  add_bias(op.bias, op.y, pool);
}

// Columns are shared out, and each is summed from the first row to the last.
void run(const BiasGrad<Tensor>& op, ThreadPool& pool) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t n = op.dy.rows(), m = op.dy.columns();
  run_tasks(pool, (m + kColumns - 1) / kColumns, [&](std::int64_t block) {
    const std::int64_t begin = block * kColumns, width = std::min(kColumns, m - begin);
    double sums[kColumns] = {};
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < width; ++j) sums[j] += static_cast<double>(op.dy.f32()[i * m + begin + j]);
    for (std::int64_t j = 0; j < width; ++j) {
      float& to = op.dbias.f32()[begin + j];
      to = (op.accumulate ? to : 0.0f) + static_cast<float>(sums[j]);
    }
  });
}

void run(const LinearInputGrad<Tensor>& op, ThreadPool& pool) {
  const float beta = op.accumulate ? 1.0f : 0.0f;
  gemm(product(matrix(op.dy), matrix(op.weight), op.dx.f32(), op.dx.columns(), 1, beta), pool);
}

void run(const LinearWeightGrad<Tensor>& op, ThreadPool& pool) {
  const float beta = op.accumulate ? 1.0f : 0.0f;
  gemm(product(turned(matrix(op.dy)), matrix(op.x), op.dweight.f32(), op.x.columns(), 1, beta), pool);
}

}  // namespace redline::ops::cpu
