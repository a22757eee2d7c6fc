// average += share * (parameters - average), cut into ranges of kRange elements, and the exchange of both.
#include <algorithm>
#include <functional>

#include "base/step_state.h"
#include "optim/cpu/kernels.h"

namespace redline::optim::cpu {
namespace {

constexpr std::int64_t kRange = 16384;

// Calls body(first, count) for every range.
template <class Body>
void for_ranges(std::int64_t n, ThreadPool& pool, const Body& body) {
  const auto task = [&](std::int64_t range) { body(range * kRange, std::min(n - range * kRange, kRange)); };
  pool.run((n + kRange - 1) / kRange, std::cref(task));
}

}  // namespace

void run(const Average<Tensor>& op, ThreadPool& pool) {
  if (op.result.as<UpdateResult>()->finite != 1.0f) return;
  const float share = op.state.as<StepState>()->average;
  for_ranges(op.average.elements(), pool, [&](std::int64_t first, std::int64_t count) {
    const float* const p = op.parameters.f32() + first;
    float* const average = op.average.f32() + first;
    if (share == 1.0f) {
      std::copy_n(p, count, average);
      return;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) average[i] = average[i] + share * (p[i] - average[i]);
  });
}

void run(const Exchange<Tensor>& op, ThreadPool& pool) {
  for_ranges(op.average.elements(), pool, [&](std::int64_t first, std::int64_t count) {
    float* const p = op.parameters.f32() + first;
    std::swap_ranges(p, p + count, op.average.f32() + first);
  });
}

}  // namespace redline::optim::cpu
