// The learning rate of a step, Muon's momentum, and what a step counts for in an average. Pure functions: nothing to
// save, nothing to resume.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace redline::optim {

// Steps of the warm-up of a run of `steps`: optim.warmup_steps, or the number whose tokens come nearest to
// optim.warmup_tokens, counted from optim.schedule_start with the batch's ramp (config/ramps.h), or the nearest to
// optim.warmup_fraction of those that the schedule has, at least one. `ranks`: of the run.
std::int64_t warmup_steps(const config::Config& config, std::int64_t steps, std::int64_t ranks);
// Steps at the end of `steps` over which wsd decays: the nearest to optim.decay_fraction of those that the schedule
// has, or to optim.decay_tokens, in full steps.
std::int64_t decay_steps(const config::Config& config, std::int64_t steps, std::int64_t ranks);

// Step counts from 0 to steps - 1. Warm-up rises linearly and reaches lr after its steps; the last step has exactly
// the final rate (min_lr; lr itself for `constant`). wsd holds lr, then falls over its decay: linearly, or by the root
// of the share of it that has passed. All of it counts from `schedule_start`. The steps before it have the rate that
// the schedule begins with.
double learning_rate(const config::Config& config, std::int64_t step, std::int64_t steps, std::int64_t ranks);

// Muon's momentum: it rises linearly over the first muon_momentum_steps and stays.
double muon_momentum(const config::Optim& optim, std::int64_t step);

// The share of the weights after step `step` (from 0) of a run of `steps` in their average:
//   ema   1 / min(step + 1, average_steps): the mean of all so far, then an exponential one of that reach
//   last  1 / k at the k-th of the last average_steps steps; 1 before them, so that it is the weights themselves
double average_share(const config::Train& train, std::int64_t step, std::int64_t steps);

}  // namespace redline::optim
