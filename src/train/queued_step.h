// A step that the device has been given and has not reported yet, and its figures once it has.
#pragma once

#include <string>
#include <vector>

#include "base/step_state.h"
#include "model/step_clock.h"
#include "train/observer.h"

namespace redline::train {

// The sums of one step over its micro-batches.
struct QueuedStep {
  std::int64_t step = 0;  // counted from 1
  std::int64_t draw = 0;  // of its batches, from 0: those that were passed over count as well
  double lr = 0;
  std::int64_t micro_batches = 1;  // of each rank
  std::int64_t pairs = 0, real_tokens = 0;
  double flops = 0, flops_palm = 0, data_wait = 0;
  std::int64_t truncated_tokens = 0;       // of the run so far
  std::optional<double> epoch;             // reached by it
  std::vector<data::SourceShare> sources;  // of a mixture, up to it
  std::vector<std::int64_t> documents;     // of the source, in its batches
  std::optional<Fp8Observation> fp8;       // where the step was looked at
  std::optional<model::NormSums> norms;    // where they were looked at

  void clear();
  double learned() const;                      // share of the documents' tokens that are targets
  void take_counts(const StepCounts& counts);  // of all ranks, once they are known

  // The figures that the step itself gives; `slots` are the token slots of its batches. A peak of 0: no mfu.
  StepMetrics metrics(double loss, double norm, const model::StepTime& time, std::int64_t slots, double peak) const;

  // The reason why its update was not made, and on which documents; without a full stop.
  std::string trouble(double loss, const UpdateResult& update) const;
};

// Whether an update was not made because its norm was above the limit, while norm and loss were finite.
bool is_spike(double loss, const UpdateResult& update);

}  // namespace redline::train
