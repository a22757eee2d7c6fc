// Norms on the CPU: norm = inv_pairs * sqrt(sum g^2); sums[t] = sum (x - minus)^2 over a tensor. The norm's sum is cut
// into kCutGroups ranges by size alone, a tensor into its slices, each summed in double in eight lanes (one lane would
// wait on its own additions), and the parts are added in their order.
#include <algorithm>
#include <cmath>
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
  for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
    for (std::int64_t j = 0; j < kLanes; ++j) add(j, i + j);
  }
  for (std::int64_t j = 0; i + j < end; ++j) add(j, i + j);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void run(const SumSquares<Tensor>& op, ThreadPool& pool) {
  double* totals = op.totals.as<double>();
  const std::int64_t end = op.begin + op.gradients.elements();
  const auto gradient = [from = op.gradients.f32()](std::int64_t i) { return static_cast<double>(from[i]); };
  const auto sum_group = [&](std::int64_t g) {
    const std::int64_t from = std::max(group_begin(g, op.all), op.begin),
                       to = std::min(group_begin(g + 1, op.all), end);
    const double sum = from < to ? sum_of_squares(from - op.begin, to - op.begin, gradient) : 0.0;
    totals[g] = op.more ? totals[g] + sum : sum;  // one of the two is 0
  };
  pool.run(kCutGroups, std::cref(sum_group));  // a reference: std::function then allocates nothing
  if (op.more) return;
  const StepState* const state = op.state.as<StepState>();
  totals[kLossTotal] = op.loss_sum.present() ? *op.loss_sum.as<double>() : 0.0;
  *reinterpret_cast<StepCounts*>(totals + kCountTotals) = state ? state->counts : StepCounts{.pairs = 1};
}

void run(const GradNorm<Tensor>& op, ThreadPool&) {
  const double* const totals = op.totals.as<double>();
  double sum = 0;
  for (std::int64_t g = 0; g < kCutGroups; ++g) sum += totals[g];
  UpdateResult result;
  result.loss_sum = totals[kLossTotal];
  result.counts = *reinterpret_cast<const StepCounts*>(totals + kCountTotals);
  const double inv_pairs =
      result.counts.pairs == 0 ? 0.0 : static_cast<double>(static_cast<float>(1.0 / result.counts.pairs));
  const double norm = inv_pairs * std::sqrt(sum);
  result.grad_norm = static_cast<float>(norm);
  bool finite = std::isfinite(result.grad_norm) && std::isfinite(result.loss_sum);
  if (op.usual.present()) {
    UsualNorm& usual = *op.usual.as<UsualNorm>();
    if (usual.count >= kUsualLeast)
      result.limit = static_cast<float>(static_cast<double>(op.spike) * std::exp(static_cast<double>(usual.mean_log)));
    finite = finite && (result.limit == 0.0f || result.grad_norm <= result.limit);
    if (finite && result.grad_norm > 0.0f) {
      usual.count = std::min(usual.count + 1.0f, kUsualMost);
      usual.mean_log += (std::log(result.grad_norm) - usual.mean_log) / usual.count;
    }
  }
  result.finite = finite ? 1.0f : 0.0f;
  const double clipped = op.clip > 0 ? std::min(1.0, static_cast<double>(op.clip) / (norm + 1e-6)) : 1.0;
  result.grad_scale = finite ? static_cast<float>(inv_pairs * clipped) : 0.0f;
  *op.result.as<UpdateResult>() = result;
}

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
