// The learning rate of a step, and Muon's momentum. Pure functions: nothing to save, nothing to resume.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace redline::optim {

// Step counts from 0 to steps - 1. Warm-up rises linearly and reaches lr at step `warmup_steps`; the last
// step has exactly the final rate (min_lr; lr itself for `constant`). wsd holds lr, then falls linearly
// over the last decay_fraction. All of it counts from `schedule_start`: the steps before it are none of the schedule's,
// and have the rate that it begins with.
double learning_rate(const config::Optim& optim, std::int64_t step, std::int64_t steps);

// Muon's momentum: it rises linearly over the first muon_momentum_steps and stays.
double muon_momentum(const config::Optim& optim, std::int64_t step);

}  // namespace redline::optim
