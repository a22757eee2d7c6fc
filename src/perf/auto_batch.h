// The search behind train.batch_size = "auto". It runs the plan's best few settings for a few steps each on the device,
// and keeps the fastest. The rows of a step stay as they are, or the learning rate follows (perf/plan.h).
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "perf/plan.h"

namespace redline::perf {

// The machine with the memory that is free on it now. Memory that the process holds already counts as the plan counts
// it.
Machine machine_now(device::Device& device);

struct AutoBatchOptions {
  bool measure = true;                                                               // off: the plan decides alone
  std::function<void(const Setting&, std::size_t number, std::size_t of)> progress;  // before each setting that is run
  const std::atomic<int>* stop = nullptr;  // set by a signal: no further setting is run
};

struct Tried {
  Setting setting;
  double expected = 0;             // tokens a second, of full rows
  std::optional<double> measured;  // token slots a second, on the run's own data
  std::string problem;             // why it could not be run
};

struct AutoBatch {
  config::Config config;         // with numbers in place of "auto"
  std::vector<Tried> tried;      // the chosen one first
  std::int64_t rows_before = 0;  // of a step, as it was asked for; `config` may have others
};

// Where no setting fits, a UserError says how much the smallest one needs.
AutoBatch find_batch_size(const config::Config& config, device::Device& device, const AutoBatchOptions& options);

// A resumed run keeps the batch size it began with, and nothing is searched. A recompute that the configuration sets
// stays, since it does not change the results.
config::Config adopt_batch_size(const config::Config& config, const config::Config& run);

}  // namespace redline::perf
