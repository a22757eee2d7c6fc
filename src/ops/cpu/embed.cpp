// Embedding: rows of the table copied by token and scaled; backward, scaled rows of dy added to them in the order of i.
// Forward shares out tokens. Backward shares out columns: each thread walks every token over its own columns, so a row
// that many tokens name is added in order and nothing is written by two.
#include <algorithm>
#include <numeric>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {

void run(const Embed<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.y.rows(), d = op.y.columns();
  const std::int32_t* tokens = op.tokens.i32();
  const float* weight = op.weight.f32();
  float* y = op.y.f32();
  for_rows(pool, n, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::copy_n(weight + tokens[i] * d, d, y + i * d);
    if (op.scale == 1) return;
#pragma omp simd
    for (std::int64_t j = begin * d; j < end * d; ++j) y[j] *= op.scale;
  });
}

void run(const EmbedGrad<Tensor>& op, ThreadPool& pool) {
  constexpr std::int64_t kColumns = 64;  // four cache lines of a row
  const std::int64_t n = op.dy.rows(), d = op.dy.columns();
  const std::int32_t* tokens = op.tokens.i32();
  const float* dy = op.dy.f32();
  float* dweight = op.dweight.f32();
  if (!op.accumulate) {
    for_rows(pool, op.dweight.rows(), d,
             [&](std::int64_t begin, std::int64_t end) { std::fill(dweight + begin * d, dweight + end * d, 0.0f); });
  }
  run_tasks(pool, (d + kColumns - 1) / kColumns, [&](std::int64_t task) {
    const std::int64_t first = task * kColumns, columns = std::min(kColumns, d - first);
    for (std::int64_t i = 0; i < n; ++i) {
      if (tokens[i] == op.padding) continue;
      float* to = dweight + tokens[i] * d + first;
      const float* from = dy + i * d + first;
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) to[j] += op.scale * from[j];
    }
  });
}

void run(const SortTokens<Tensor>& op, ThreadPool&) {
  const std::int64_t n = op.tokens.elements();
  const std::int32_t* tokens = op.tokens.i32();
  std::int32_t *sorted = op.order.i32(), *rows = sorted + n;
  std::iota(rows, rows + n, 0);
  std::stable_sort(rows, rows + n, [&](std::int32_t a, std::int32_t b) { return tokens[a] < tokens[b]; });
  for (std::int64_t i = 0; i < n; ++i) sorted[i] = tokens[rows[i]];
}

}  // namespace redline::ops::cpu
