// The illnesses of learning, from a run's record or from a configuration alone: a rate that teaches nothing, a run that
// is all warm-up, spikes, a plateau, overfitting, too few tokens, experts that starve, a router that has collapsed.
// What they cost is a share of the run, not of a step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "train/illness.h"

namespace redline::perf {

// What a run has recorded of its learning: nothing, for one that was not begun.
struct Learned {
  std::vector<std::int64_t> steps;                        // rising
  std::vector<double> loss, grad_norm, rate;              // of each of them; NaN: not known
  std::vector<std::pair<std::int64_t, double>> held_out;  // losses by step, rising
  std::int64_t steps_of_run = 0;                          // that were asked for; 0: not known
  std::int64_t ranks = 1;

  // The experts of a layer: loads in the mean over the last quarter of the looks at them, 1 being an even share.
  struct Router {
    std::int64_t layer = 0;
    std::vector<double> loads;
  };
  std::vector<Router> routers;
  std::int64_t router_looks = 0, first_look = 0, last_look = 0;  // in that quarter; steps of the first and the last
};

struct LearningIllness {
  train::Illness illness;
  std::string found;
  std::string costs;                      // "350 of 400 steps", "all that the run learns"
  double share = 0;                       // of the run
  std::vector<std::string> changes = {};  // the keys that mend it
  std::string mend = {};                  // a clause; empty: that of the table
};

// Fewer tokens than this for each parameter leave most of a model as it was made. About twenty are usual (Hoffmann et
// al., arXiv 2203.15556); those of a model that goes on from weights are not counted.
inline constexpr double kFewTokens = 0.5;
// A loss that falls less than this share of itself, from one half of the looked at steps to the other, stands still.
inline constexpr double kStandsStill = 0.003;
// A held-out loss so much above its best says that the model has learned its text by heart.
inline constexpr double kOverfitted = 0.02;

// An expert with less than this part of an even share learns next to nothing.
inline constexpr double kStarves = 0.05;
// Experts of equal loads that would be as uneven as these: all where loads are even, experts_per_token where every
// token goes to the same ones. A router has collapsed where they are fewer than twice that, or nearer to that than to
// all.
double experts_in_use(const std::vector<double>& loads);
double fewest_in_use(std::int64_t experts, std::int64_t per_token);

std::vector<LearningIllness> illnesses_of_learning(const config::Config& config, const Learned& learned,
                                                   std::int64_t parameters);

}  // namespace redline::perf
