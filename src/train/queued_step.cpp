// The arithmetic of a step's figures, and the sentence for one whose loss or norm is not finite.
#include "train/queued_step.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/troubleshooting.h"
#include "train/trainer.h"

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

void QueuedStep::clear() {
  pairs = real_tokens = 0;
  flops = flops_palm = data_wait = 0;
  documents.clear();
  fp8.reset();
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

void QueuedStep::refuse(double loss, double norm) const {
  std::vector<std::int64_t> seen = documents;
  std::ranges::sort(seen);
  const auto [end, rest] = std::ranges::unique(seen);
  seen.erase(end, rest);
  const std::size_t shown = std::min<std::size_t>(seen.size(), 8), more = seen.size() - shown;
  seen.resize(shown);
  throw NotFinite(fmt::format(
      "step {}: {} is not finite (loss {}, gradient norm {}) on the batch of documents {}{}; the update was not "
      "made and the last checkpoint stays: try a lower optim.lr (now {:g}), a longer optim.warmup_steps or optim.clip, "
      "then --resume; see {}",
      step, std::isfinite(loss) ? "the gradient norm" : "the loss", loss, norm, fmt::join(seen, ", "),
      more ? fmt::format(" and {} more", more) : "", lr, troubleshooting::kNotFinite));
}

}  // namespace redline::train
