// Finds the fastest batch size and recompute of a configuration on a machine, by plans.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "perf/plan.h"

namespace redline::perf {

// The settings that fit the machine, fastest first. They keep the rows of a step. Where that makes every setting much
// slower (a number of rows without a useful divisor), the nearest better number is taken and `changed` is set.
// Recompute is chosen as well, unless the configuration sets it.
struct Choice {
  std::vector<Plan> best;  // empty: nothing fits
  bool changed = false;
  std::size_t considered = 0;
  std::vector<Plan> too_large;   // settings that do not fit
  std::optional<Plan> smallest;  // the setting with the least memory, whether it fits or not
};
// Called with the number of settings planned so far, and of all.
using ChooseProgress = std::function<void(std::size_t done, std::size_t of)>;
Choice choose(const config::Config& config, const Machine& machine, const ChooseProgress& progress = {});

// One or two sentences: why the first of `best` is the choice, or why nothing fits.
std::string why(const Choice& choice, const Machine& machine);

}  // namespace redline::perf
