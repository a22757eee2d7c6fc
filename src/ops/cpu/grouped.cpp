// Grouped linears: one product for each group, over the rows that its offsets name. Operands in eight bits are taken
// back to fp32, which is exact.
#include <algorithm>

#include "base/error.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// Rows of a matrix, from `first` on.
Matrix rows_of(const Tensor& t, std::int64_t first, std::int64_t rows) {
  return {t.f32() + first * t.columns(), rows, t.columns(), t.columns()};
}
// The matrix of one group.
Matrix matrix_of(const Tensor& weight, std::int64_t group) {
  const std::int64_t rows = weight.shape[1], columns = weight.shape[2];
  return {weight.f32() + group * rows * columns, rows, columns, columns};
}

// Calls visit(group, first row, rows) for each group, and returns where the rows without one begin.
template <class Visit>
std::int64_t each_group(const Tensor& offsets, std::int64_t n, const Visit& visit) {
  const std::int32_t* const at = offsets.i32();
  REDLINE_CHECK(at[0] == 0, "the first group begins at row {}", at[0]);
  const std::int64_t groups = offsets.elements() - 1;
  for (std::int64_t g = 0; g < groups; ++g) {
    REDLINE_CHECK(at[g] <= at[g + 1] && at[g + 1] <= n, "group {} has rows {} to {} of {}", g, at[g], at[g + 1], n);
    visit(g, at[g], at[g + 1] - at[g]);
  }
  return at[groups];
}

// Columns in eight bits, which lie in blocks, as numbers, [d, n].
std::vector<float> columns_of(const Tensor& t, std::int64_t n, ThreadPool& pool) {
  std::vector<float> numbers = numbers_of(t, pool);
  const std::int64_t d = t.shape[1];
  std::vector<float> columns(static_cast<std::size_t>(d * n));
  for_rows(pool, d, n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      for (std::int64_t i = 0; i < n; ++i)
        columns[static_cast<std::size_t>(c * n + i)] =
            numbers[static_cast<std::size_t>((i / kColumnBlock * d + c) * kColumnBlock + i % kColumnBlock)];
  });
  return columns;
}

void clear_rows(const Tensor& t, std::int64_t first) {
  std::fill(t.f32() + first * t.columns(), t.f32() + t.elements(), 0.0f);
}

}  // namespace

void run(const GroupedLinear<Tensor>& op, ThreadPool& pool) {
  const std::int64_t m = op.y.columns();
  const std::int64_t end = each_group(op.offsets, op.x.rows(), [&](std::int64_t g, std::int64_t first, std::int64_t n) {
    if (n > 0) gemm(product(rows_of(op.x, first, n), turned(matrix_of(op.weight, g)), op.y.f32() + first * m, m), pool);
  });
  clear_rows(op.y, end);
}

void run(const GroupedLinearInputGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t k = op.dx.columns();
  const float beta = op.accumulate ? 1.0f : 0.0f;
  const std::int64_t end =
      each_group(op.offsets, op.dy.rows(), [&](std::int64_t g, std::int64_t first, std::int64_t n) {
        if (n == 0) return;
        gemm(product(rows_of(op.dy, first, n), matrix_of(op.weight, g), op.dx.f32() + first * k, k, 1, beta), pool);
      });
  if (!op.accumulate) clear_rows(op.dx, end);
}

void run(const GroupedLinearWeightGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t k = op.x.columns(), m = op.dy.columns();
  const float beta = op.accumulate ? 1.0f : 0.0f;
  each_group(op.offsets, op.x.rows(), [&](std::int64_t g, std::int64_t first, std::int64_t n) {
    float* const dweight = op.dweight.f32() + g * m * k;
    if (n > 0)
      gemm(product(turned(rows_of(op.dy, first, n)), rows_of(op.x, first, n), dweight, k, 1, beta), pool);
    else if (!op.accumulate)
      std::fill(dweight, dweight + m * k, 0.0f);
  });
}

void run(const GroupedFp8Product<Tensor>& op, ThreadPool& pool) {
  const std::int64_t k = op.a.columns(), m = op.c.columns();
  const std::vector<float> a = numbers_of(op.a, pool), b = numbers_of(op.b, pool);
  const float beta = op.accumulate ? 1.0f : 0.0f;
  const std::int64_t end = each_group(op.offsets, op.a.rows(), [&](std::int64_t g, std::int64_t first, std::int64_t n) {
    if (n == 0) return;
    const float scale = op.a_scale.as<Fp8Scale>()->inverse * op.b_scales.as<Fp8Scale>()[g].inverse;
    gemm(product({a.data() + first * k, n, k, k}, turned({b.data() + g * m * k, m, k, k}), op.c.f32() + first * m, m,
                 scale, beta),
         pool);
  });
  if (!op.accumulate) clear_rows(op.c, end);
}

void run(const GroupedFp8WeightGrad<Tensor>& op, ThreadPool& pool) {
  const std::int64_t rows = op.n, m = op.dweight.shape[1], k = op.dweight.shape[2];
  const std::vector<float> dy = columns_of(op.dy, rows, pool), x = columns_of(op.x, rows, pool);
  const float scale = op.dy_scale.as<Fp8Scale>()->inverse * op.x_scale.as<Fp8Scale>()->inverse;
  each_group(op.offsets, rows, [&](std::int64_t g, std::int64_t first, std::int64_t n) {
    float* const dweight = op.dweight.f32() + g * m * k;
    if (n > 0)
      gemm(product({dy.data() + first, m, n, rows}, turned({x.data() + first, k, n, rows}), dweight, k, scale,
                   op.accumulate ? 1.0f : 0.0f),
           pool);
    else if (!op.accumulate)
      std::fill(dweight, dweight + m * k, 0.0f);
  });
}

}  // namespace redline::ops::cpu
