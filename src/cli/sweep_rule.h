// When a run of a sweep is hopeless: its held-out loss held against those of the others at the same step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"

namespace redline::cli {

// Whether a loss of the one at some step says anything about the other's: the same data, the same batch, as many steps
// and the same shape of the schedule.
bool comparable(const config::Config& a, const config::Config& b);

// What it takes to judge a run.
struct JudgedRun {
  const config::Config* config = nullptr;
  std::string group;                                            // the same for runs that differ only in train.seed
  const std::map<std::int64_t, double>* evaluations = nullptr;  // held-out losses by step
};

// Why `run` is hopeless by its newest evaluation, of `steps` that it will make in all (0: not known); empty: it is not.
// Before a quarter of the steps nobody is. From then on a run is where its loss is not finite, or above that of the
// group in the middle of the others by more than `margin` (a share of that loss). A group is worth the lowest loss that
// any of its runs had at the same step, and so is the run's own: no seed is stopped by luck. Of an even number of
// groups, the better of the two in the middle counts.
std::string hopeless(const JudgedRun& run, const std::vector<JudgedRun>& others, std::int64_t steps, double margin);

}  // namespace redline::cli
