// Decides when a run of a sweep is hopeless, from its held-out loss and those of the other runs at the same step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"

namespace redline::cli {

// Whether losses of the two runs at one step can be compared: same data, same batch, as many steps, same shape of the
// schedule.
bool comparable(const config::Config& a, const config::Config& b);

// A run to be judged.
struct JudgedRun {
  const config::Config* config = nullptr;
  std::string group;                                            // the same for runs that differ only in train.seed
  const std::map<std::int64_t, double>* evaluations = nullptr;  // held-out losses by step
};

// Returns why `run` is hopeless at its newest evaluation, or nothing where it is not. `steps` is the number of its
// steps in all (0: not known). No run is hopeless before a quarter of its steps. After that, a run is hopeless where
// its loss is not finite, or exceeds the median of the other groups by more than `margin` (a share of that median). A
// group counts with the lowest loss of its runs at the same step, as does the run's own group, so that no seed is
// stopped by luck. Of an even number of groups, the better of the two in the middle is the median.
std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin);

}  // namespace redline::cli
