// train.batch_size = "auto": the plan's best few settings, each run for a few steps on the device itself; the fastest
// is kept. The rows of a step stay as they are, or the learning rate follows (see perf/plan.h).
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "perf/plan.h"

namespace redline::perf {

// The machine with what is free on it now: what the process holds already counts as the plan counts it.
Machine machine_now(device::Device& device);

struct AutoBatchOptions {
  bool measure = true;                                                               // off: the plan's word is taken
  std::function<void(const Setting&, std::size_t number, std::size_t of)> progress;  // before each that is run
  const std::atomic<int>* stop = nullptr;                                            // a signal: no further one is run
};

struct Tried {
  Setting setting;
  double expected = 0;             // tokens a second, of full rows
  std::optional<double> measured;  // token slots a second, on the run's own data
  std::string problem;             // why it could not be run
};

struct AutoBatch {
  config::Config config;         // with numbers in place of "auto"
  std::vector<Tried> tried;      // the one that was taken first
  std::int64_t rows_before = 0;  // of a step; other than the configuration's now where they had to change
};

// A configuration for which nothing fits is a UserError that says what the least would need.
AutoBatch find_batch_size(const config::Config& config, device::Device& device, const AutoBatchOptions& options);

// What a run that goes on was given when it began: nothing is searched again. A recompute that the configuration sets
// stays, since it does not change what is computed.
config::Config adopt_batch_size(const config::Config& config, const config::Config& run);

}  // namespace redline::perf
