// Matrices one after the other, each product spread over the pool: C = alpha A B + beta D begins as a copy of D.
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

void copy(const float* from, float* to, std::int64_t n, ThreadPool& pool) {
  for_rows(pool, n, 1, [&](std::int64_t begin, std::int64_t end) { std::copy(from + begin, from + end, to + begin); });
}

}  // namespace

void run(const Orthogonalize<Tensor>& op, ThreadPool& pool) {
  const std::int64_t rows = op.x.shape[1], columns = op.x.shape[2], elements = rows * columns;
  const std::int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const bool wide = rows <= columns;
  const Transpose no = Transpose::no, yes = Transpose::yes;
  for (std::int64_t i = 0; i < op.x.shape[0]; ++i) {
    float *from = op.x.f32() + i * elements, *to = op.y.f32() + i * elements;
    float *const gram = op.gram.f32() + i * m * m, *const square = op.square.f32() + i * m * m;
    for (std::int64_t round = 0; round < op.rounds; ++round) {
      const Polynomial p = polynomial(op.polynomials, round);
      gemm({wide ? no : yes, wide ? yes : no, m, m, n, from, columns, from, columns, gram, m}, pool);
      copy(gram, square, m * m, pool);
      gemm({no, no, m, m, m, gram, m, gram, m, square, m, p.c, p.b}, pool);
      copy(from, to, elements, pool);
      if (wide)
        gemm({no, no, rows, columns, m, square, m, from, columns, to, columns, 1, p.a}, pool);
      else
        gemm({no, no, rows, columns, m, from, columns, square, m, to, columns, 1, p.a}, pool);
      std::swap(from, to);
    }
  }
}

}  // namespace redline::ops::cpu
