// Matrix products on the CPU: OpenBLAS on one thread for each tile, tiles spread over our own pool. Tiles are cut by
// shape alone, so the bits do not depend on the number of threads. (OpenBLAS's own threads spin between calls and would
// fight the pool for the cores.)
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline::ops::cpu {

enum class Transpose { no, yes };

// C[m, n] = alpha * op(A) * op(B) + beta * C, row-major with leading dimensions.
struct Gemm {
  Transpose ta = Transpose::no, tb = Transpose::no;
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  float alpha = 1, beta = 0;
};

// [rows, columns] as it is stored, its rows `stride` apart.
struct Matrix {
  const float* data;
  std::int64_t rows, columns, stride;
  Transpose turn = Transpose::no;  // read turned over
};
inline Matrix matrix(const Tensor& t) { return {t.f32(), t.rows(), t.columns(), t.columns()}; }
inline Matrix turned(Matrix m) {
  m.turn = Transpose::yes;
  return m;
}

// C = alpha * A * B + beta * C, the rows of C `ldc` apart.
inline Gemm product(const Matrix& a, const Matrix& b, float* c, std::int64_t ldc, float alpha = 1, float beta = 0) {
  const bool turn_a = a.turn == Transpose::yes, turn_b = b.turn == Transpose::yes;
  const std::int64_t m = turn_a ? a.columns : a.rows, n = turn_b ? b.rows : b.columns, k = turn_a ? a.rows : a.columns;
  return {a.turn, b.turn, m, n, k, a.data, a.stride, b.data, b.stride, c, ldc, alpha, beta};
}

void gemm(const Gemm& g, ThreadPool& pool);  // spread over the pool
void gemm_tile(const Gemm& g);               // on the calling thread

// Called before the first gemm_tile of a pool's threads. Checks once that there is memory for OpenBLAS's buffers of all
// threads; OpenBLAS itself would wait for it without end.
void require_buffers(ThreadPool& pool);

// y + bias for every row of y, where there is a bias (linear.cpp).
void add_bias(const Tensor& bias, const Tensor& y, ThreadPool& pool);

// Operands in eight bits (fp8.cpp).
// x [n, d] in fp32, as bf16 keeps it, times the scale: to rows [n, d] and to columns [d, n], whichever is there.
void cast(const Tensor& x, const Tensor& rows, const Tensor& columns, float scale, ThreadPool& pool);

// The values of an fp8 tensor, before its scale, in memory of their own. The reference need not save memory.
std::vector<float> numbers_of(const Tensor& t, ThreadPool& pool);

}  // namespace redline::ops::cpu
