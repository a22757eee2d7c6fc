// tune() searches the fastest settings of a configuration on a device, beginning with the plan's best: rows of a
// micro-batch, recompute, rows of logits, tuning, attention, graphs, and fp8 where it is allowed. At the end the winner
// and the start are measured once more, in turns. A Bench measures.
#pragma once

#include <string>
#include <vector>

#include "perf/search.h"

namespace redline::perf {

struct TuneOptions : SearchOptions {
  bool allow_batch = false;  // a step may have other rows; learning rates follow the root of their ratio
  bool allow_fp8 = false;
};

struct Tuned {
  std::vector<Trial> rows;  // factors are over the start, which is the first
  config::Config start, best;
  // The start and the winner, measured in turns at the end, with their noise.
  Measured start_again, best_again;
  bool faster = false;   // the winner beats the start beyond noise; else best is the start
  bool stopped = false;  // by a signal
};

// A start that cannot be run is a UserError.
Tuned tune(const LoadConfig& load, const Bench& bench, const TuneOptions& options);

// An overlay for train: the keys that changed, with the measured figures as comments.
std::string overlay_of(const Tuned& tuned, const std::string& device, const std::string& command);

}  // namespace redline::perf
