// The arithmetic of a step's figures, and the sentence for one whose update was not made.
#include "train/queued_step.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "train/guard.h"

namespace redline::train {

Fp8Observation::Fp8Observation(std::vector<model::Fp8Seen> seen) : tensors(std::move(seen)) {
  const auto take = [&](double model::Fp8Seen::*share, auto& most, auto& whose) {
    const auto it = std::ranges::max_element(tensors, {}, share);
    if (it == tensors.end()) return;
    most = (*it).*share;
    whose = it->name;
  };
  take(&model::Fp8Seen::saturated, saturated, most_saturated);
  take(&model::Fp8Seen::zero, zero, most_zero);
}

NormsObservation::NormsObservation(std::vector<model::TensorNorm> norms) : tensors(std::move(norms)) {
  double weights = 0, updates = 0;
  for (const model::TensorNorm& t : tensors) {
    weights += t.weight * t.weight;
    updates += t.update * t.update;
  }
  weight = std::sqrt(weights);
  if (std::isfinite(updates)) update = std::sqrt(updates);
}

void QueuedStep::clear() {
  pairs = real_tokens = 0;
  flops = flops_palm = data_wait = 0;
  documents.clear();
  fp8.reset();
  norms.reset();
}

void QueuedStep::take_counts(const StepCounts& counts) {
  pairs = static_cast<std::int64_t>(counts.pairs);
  real_tokens = static_cast<std::int64_t>(counts.real_tokens);
  flops = counts.flops;
  flops_palm = counts.flops_palm;
}

double QueuedStep::learned() const {
  return static_cast<double>(pairs) / static_cast<double>(std::max<std::int64_t>(real_tokens, 1));
}

StepMetrics QueuedStep::metrics(double loss, double norm, const model::StepTime& time, std::int64_t slots,
                                double peak) const {
  const double seconds = time.seconds;
  StepMetrics m;
  m.step = step;
  m.time = unix_seconds();
  m.loss = loss;
  m.grad_norm = norm;
  m.lr = lr;
  m.step_ms = 1e3 * seconds;
  m.device_ms = 1e3 * time.working;
  m.idle_ms = std::max(0.0, m.step_ms - m.device_ms);
  m.tokens = pairs;
  m.epoch = epoch;
  m.tokens_per_s = static_cast<double>(pairs) / seconds;
  m.padding = 1 - static_cast<double>(real_tokens) / static_cast<double>(slots);
  m.tflops = flops / seconds * 1e-12;
  if (peak > 0) {
    m.mfu = flops / seconds / peak;
    m.mfu_palm = flops_palm / seconds / peak;
  }
  m.data_wait_ms = 1e3 * data_wait;
  m.fp8 = fp8;
  return m;
}

std::string QueuedStep::trouble(double loss, const UpdateResult& update) const {
  const std::string where = fmt::format("on the batch of documents {}", documents_in_words(documents));
  if (is_spike(loss, update))
    return fmt::format("step {}: the gradient norm {:g} is above its limit of {:g} (loss {:g}) {}", step,
                       update.grad_norm, update.limit, loss, where);
  return fmt::format("step {}: {} is not finite (loss {}, gradient norm {}) {}", step,
                     std::isfinite(loss) ? "the gradient norm" : "the loss", loss, update.grad_norm, where);
}

bool is_spike(double loss, const UpdateResult& update) {
  return update.limit > 0 && std::isfinite(loss) && std::isfinite(update.grad_norm);
}

}  // namespace redline::train
