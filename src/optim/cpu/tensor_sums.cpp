// sums[t] = sum (x - minus)^2 over a tensor: its slices first, in double and in eight lanes each, then their sum.
#include <functional>

#include "optim/cpu/kernels.h"

namespace redline::optim::cpu {
namespace {

template <class Value>
double sum_of_squares(std::int64_t begin, std::int64_t end, const Value& value) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  const auto add = [&](std::int64_t lane, std::int64_t i) {
    const double v = value(i);
    lanes[lane] += v * v;
  };
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) add(j, i + j);
  for (std::int64_t j = 0; i + j < end; ++j) add(j, i + j);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void run(const TensorSums<Tensor>& op, ThreadPool& pool) {
  const std::int64_t tensors = op.sums.elements();
  const auto* const bounds = op.bounds.as<std::int64_t>();
  double* const partial = op.partial.as<double>();
  const float *const x = op.x.f32(), *const minus = op.minus.present() ? op.minus.f32() : nullptr;
  const auto sum_slice = [&](std::int64_t task) {
    const std::int64_t tensor = task / kTensorSlices, slice = task % kTensorSlices;
    const std::int64_t first = bounds[2 * tensor], n = bounds[2 * tensor + 1] - first;
    const std::int64_t begin = first + slice_begin(slice, n), end = first + slice_begin(slice + 1, n);
    partial[task] =
        minus ? sum_of_squares(begin, end, [&](std::int64_t i) { return static_cast<double>(x[i] - minus[i]); })
              : sum_of_squares(begin, end, [&](std::int64_t i) { return static_cast<double>(x[i]); });
  };
  pool.run(tensors * kTensorSlices, std::cref(sum_slice));
  for (std::int64_t t = 0; t < tensors; ++t) {
    double sum = 0;
    for (std::int64_t s = 0; s < kTensorSlices; ++s) sum += partial[t * kTensorSlices + s];
    op.sums.as<double>()[t] = sum;
  }
}

}  // namespace redline::optim::cpu
