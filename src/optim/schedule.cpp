// The learning-rate schedules. Where there is no step left to fall over, warm-up wins: a run that ends inside its
// warm-up only rises, and a run of one step trains at lr.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace redline::optim {

double learning_rate(const config::Optim& optim, std::int64_t step, std::int64_t steps) {
  steps -= optim.schedule_start;
  step = std::max<std::int64_t>(0, step - optim.schedule_start);
  const double lr = optim.lr, low = optim.min_lr;
  const std::int64_t warmup = std::max<std::int64_t>(0, optim.warmup_steps), last = steps - 1;
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
    const std::int64_t decay = std::llround(optim.decay_fraction * static_cast<double>(steps));
    return lr + (low - lr) * progress_from(last - std::clamp<std::int64_t>(decay, 1, last - warmup));
  }
  fail_user("optim.schedule is \"{}\"; it may be constant, linear, cosine or wsd", optim.schedule);
}

double muon_momentum(const config::Optim& optim, std::int64_t step) {
  if (step >= optim.muon_momentum_steps) return optim.muon_momentum;
  const double risen = static_cast<double>(step) / static_cast<double>(optim.muon_momentum_steps);
  return optim.muon_momentum_from + (optim.muon_momentum - optim.muon_momentum_from) * risen;
}

}  // namespace redline::optim
