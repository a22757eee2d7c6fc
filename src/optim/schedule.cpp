// The learning-rate schedules. Where there is no step left to fall over, warm-up wins: a run that ends inside its
// warm-up only rises, and a run of one step trains at lr.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "config/ramps.h"

namespace redline::optim {
namespace {

double micro_batches_of(std::int64_t tokens, const config::Train& t, std::int64_t ranks) {
  return static_cast<double>(tokens) / (static_cast<double>(t.batch_size * t.seq_len) * static_cast<double>(ranks));
}

}  // namespace

std::int64_t warmup_steps(const config::Config& c, std::int64_t steps, std::int64_t ranks) {
  if (c.optim.warmup_fraction > 0)
    return std::max<std::int64_t>(
        1, std::llround(c.optim.warmup_fraction * static_cast<double>(steps - c.optim.schedule_start)));
  if (c.optim.warmup_tokens == 0) return std::max<std::int64_t>(0, c.optim.warmup_steps);
  const std::int64_t start = c.optim.schedule_start;
  return config::nearest_steps(c.train, static_cast<double>(config::micro_batches_before(c.train, start)) +
                                            micro_batches_of(c.optim.warmup_tokens, c.train, ranks)) -
         start;
}

std::int64_t decay_steps(const config::Config& c, std::int64_t steps, std::int64_t ranks) {
  const config::Optim& o = c.optim;
  if (o.decay_tokens == 0) return std::llround(o.decay_fraction * static_cast<double>(steps - o.schedule_start));
  return std::llround(micro_batches_of(o.decay_tokens, c.train, ranks) / static_cast<double>(c.train.accumulate));
}

double learning_rate(const config::Config& config, std::int64_t step, std::int64_t steps, std::int64_t ranks) {
  const config::Optim& optim = config.optim;
  const std::int64_t decay = decay_steps(config, steps, ranks), warmup = warmup_steps(config, steps, ranks);
  steps -= optim.schedule_start;
  step = std::max<std::int64_t>(0, step - optim.schedule_start);
  const double lr = optim.lr, low = optim.min_lr;
  const std::int64_t last = steps - 1;
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  if (optim.schedule == "constant" || last <= 0) return lr;
  if (step >= last) return low;  // exactly, whatever rounding would have made of it

  // From here warmup <= step < last.
  const auto progress_from = [&](std::int64_t start) {
    return static_cast<double>(std::max<std::int64_t>(0, step - start)) / static_cast<double>(last - start);
  };
  if (optim.schedule == "linear") return lr + (low - lr) * progress_from(warmup);
  if (optim.schedule == "cosine") {
    return low + (lr - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress_from(warmup)));
  }
  if (optim.schedule == "wsd") {
    const double progress = progress_from(last - std::clamp<std::int64_t>(decay, 1, last - warmup));
    return lr + (low - lr) * (optim.decay_shape == "sqrt" ? std::sqrt(progress) : progress);
  }
  fail_user("optim.schedule is \"{}\"; it may be constant, linear, cosine or wsd", optim.schedule);
}

double muon_momentum(const config::Optim& optim, std::int64_t step) {
  if (step >= optim.muon_momentum_steps) return optim.muon_momentum;
  const double risen = static_cast<double>(step) / static_cast<double>(optim.muon_momentum_steps);
  return optim.muon_momentum_from + (optim.muon_momentum - optim.muon_momentum_from) * risen;
}

double average_share(const config::Train& t, std::int64_t step, std::int64_t steps) {
  const std::int64_t before = t.average == "last" ? std::max<std::int64_t>(0, steps - t.average_steps) : 0;
  return 1 / static_cast<double>(std::clamp<std::int64_t>(step + 1 - before, 1, t.average_steps));
}

}  // namespace redline::optim
