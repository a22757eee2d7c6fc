// How kernels share rows among threads: in tasks cut by shape alone, and in kRowGroups groups where rows are summed, so
// that the bits never depend on the number of threads. And the weights of a norm, which are read for all rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/add_norm.h"

namespace redline::ops::cpu {

// 64 KiB of floats a task: microseconds of work, far above the cost of handing it out.
inline constexpr std::int64_t kTaskElements = 16384;

// Runs task(i) for i in [0, count). A reference fits inside std::function, a lambda with many
// captures would be allocated.
template <class Task>
void run_tasks(ThreadPool& pool, std::int64_t count, const Task& task) {
  if (count == 1) return task(0);
  if (count > 1) pool.run(count, std::cref(task));
}

// Runs body(begin, end) over ranges that cover [0, rows), each of about kTaskElements elements.
template <class Body>
void for_rows(ThreadPool& pool, std::int64_t rows, std::int64_t columns, const Body& body) {
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, columns));
  run_tasks(pool, (rows + grain - 1) / grain,
            [&](std::int64_t i) { body(i * grain, std::min(rows, (i + 1) * grain)); });
}

// Runs body(begin, end, partial row) for each of the kRowGroups groups of rows; body adds to the row,
// which starts at 0.
template <class Body>
void for_row_groups(ThreadPool& pool, std::int64_t rows, float* partial, std::int64_t columns, const Body& body) {
  run_tasks(pool, kRowGroups, [&](std::int64_t g) {
    float* row = partial + g * columns;
    std::fill_n(row, columns, 0.0f);
    body(g * rows / kRowGroups, (g + 1) * rows / kRowGroups, row);
  });
}

// sum[j] (+)= the partial rows' column first + j, group by group in order.
inline void sum_row_groups(const float* partial, std::int64_t stride, std::int64_t first, std::int64_t columns,
                           float* sum, bool accumulate) {
  if (!accumulate) std::fill_n(sum, columns, 0.0f);
  for (std::int64_t g = 0; g < kRowGroups; ++g) {
    const float* row = partial + g * stride + first;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
}

// The weights that a norm multiplies by: its own, or 1 + w of them; null where there is no norm. The sums are kept from
// call to call, so that a steady step allocates nothing; an op with two norms has them in two places.
template <int kPlace = 0>
const float* norm_weight(const Tensor& weight, bool one_plus) {
  if (!weight.present() || !one_plus) return weight.present() ? weight.f32() : nullptr;
  thread_local std::vector<float> sums;
  sums.assign(weight.f32(), weight.f32() + weight.elements());
  for (float& w : sums) w += 1.0f;
  return sums.data();
}

}  // namespace redline::ops::cpu
