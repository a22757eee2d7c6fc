// The doctor finds what keeps a training step from being as fast as its machine allows, and a run from learning. It
// divides the step's time into parts with a floor each, and names the illnesses (train/illness.h), their costs and
// their remedies. It reads figures and plans, and touches no device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "perf/learning.h"
#include "perf/plan.h"
#include "train/illness.h"

namespace redline::perf {

// An illness counts where it costs this share of the step.
inline constexpr double kWorthMending = 0.05;
// A change that was tried and surely gained less than this does not help.
inline constexpr double kLeastGain = 1.01;

// The figures known of a step: means over recorded steps, or the plan's.
struct Observed {
  bool measured = false;
  double step_ms = 0, device_ms = 0, idle_ms = 0, data_wait_ms = 0;
  double tokens = 0, mfu = 0;                                // real targets; of step_ms
  double padding = 0;                                        // share of the token slots
  double evaluation_ms = 0, sampling_ms = 0, saving_ms = 0;  // a step's share of each
  double save_seconds = 0;                                   // until a checkpoint was whole
  double ranks_wait_ms = 0, slowest_rank_ms = 0, median_rank_ms = 0;
  std::int64_t slowest_rank = -1;  // -1: there is one rank, or none is known yet
  std::string throttle;            // what held the clocks down, "": nothing
  std::optional<double> clock_mhz, max_clock_mhz;
  std::string slowest_stage;                                   // of the data pipeline; "": not known
  bool graphs_fell_back = false, reference_attention = false;  // as the run said
  bool batch_was_chosen = false;                               // by train.batch_size = "auto"
  Filling filling = {};                                        // of a step that was planned
  double packed_gain = 0;          // by the plan, so many times the real tokens a second; 0: not known
  std::string packed_by;           // the setting that gives it
  std::optional<StepParts> timed;  // the device's parts, where nodes were timed
  Learned learned = {};
};

struct Finding {
  train::Illness illness;
  std::string found;                    // "80.5% of the token slots hold no document"
  std::string mend;                     // a clause
  std::vector<std::string> changes;     // its keys, "data.packing=pack"; none: no setting helps
  std::string basis;                    // "recorded", "by the plan", "estimated"
  double loss_ms = 0;                   // of the step with its share of evaluations and saves
  double mfu_points = 0;                // percentage points of MFU that mending it gives back
  double gain = 1;                      // factor of tokens a second
  std::string costs = {};               // of an illness of learning, in words; loss_ms is its share of the run then
  std::string caution = {};             // a side effect of the change
  std::optional<double> measured = {};  // the gain as it was measured
  double noise = 0;                     // share by which another measurement of it may differ
  std::string not_measured = {};        // or why it was not

  const train::IllnessRow& row() const { return train::row_of(illness); }
  bool is_of_learning() const { return !costs.empty(); }
  bool refuted() const { return measured && *measured * (1 + noise) < kLeastGain; }
};

struct Diagnosis {
  StepParts parts;     // with evaluation, samples and saves
  double step_ms = 0;  // all of it
  double tokens_per_s = 0, mfu = 0;
  double of_plan = 0;             // the device's time over the plan's, less the illnesses' costs; 0: not measured
  std::vector<Finding> findings;  // worth mending, the most expensive first
  std::vector<Finding> options;   // faster, for another result
  std::vector<Finding> refuted;   // of both, those that were tried and do not help
  void separate_refuted();        // moves them there
  double mfu_points(double loss_ms) const { return 100 * mfu * loss_ms / (step_ms - loss_ms); }
};

// The step as the plan expects it. Slow kernels that the plan does not know are counted in.
Observed expected_step(const config::Config& config, const Machine& machine, const std::optional<Filled>& filled = {});

Diagnosis diagnose(const config::Config& config, const Machine& machine, const Observed& seen);

}  // namespace redline::perf
