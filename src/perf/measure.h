// Training steps for measurements, as the trainer makes them, on the configuration's own data and without metrics and
// checkpoints. measure() runs them for some seconds and says the speed of a configuration. Nothing is written, and
// nothing stays on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/signals.h"
#include "config/config.h"
#include "data/loader.h"
#include "device/device.h"
#include "device/gpu_monitor.h"
#include "model/engine.h"
#include "perf/plan.h"

namespace redline::perf {

// Hears of each micro-batch before its nodes run.
class StepTimer : public program::NodeTimer {
 public:
  virtual void micro_batch(std::int64_t step, double score_pairs) = 0;
};

struct StepTimes {
  double seconds = 0, waited = 0;  // in all; for batches
  double tokens = 0;               // real targets
  double model_flops = 0;
};

// The mean micro-batch.
struct Work {
  double tokens = 0;  // real targets
  double model_flops = 0;
};

class Steps {
 public:
  // Data whose vocabulary is larger than the model's is a UserError.
  // Where `stop` is set a step ends with an Interrupted.
  Steps(const config::Config& config, device::Device& device, const StopFlag* stop = nullptr);

  // Makes one update over so many micro-batches, and returns when the device has done it.
  StepTimes step(std::int64_t index, std::int64_t micro_batches, StepTimer* timer = nullptr);
  // The same in two calls, as training does: the next step is queued before the last one is awaited. `seconds` is not
  // filled in.
  StepTimes queue(std::int64_t index, std::int64_t micro_batches, StepTimer* timer = nullptr);
  void take() { engine_.take_result(); }

  // Over the first 1024 rows of the data or four million tokens, whichever of them were run: two measurements of one
  // kind of batches get the same figures. Reads on to there; nothing can be run afterwards.
  Work work();

 private:
  void read_batch();
  void count_batch();
  bool counted() const;

  const config::Config config_;
  model::LoweringOptions lowering_;
  const StopFlag* stop_;
  data::Loader loader_;
  model::Engine engine_;
  data::Batch batch_;
  Work sums_;  // of the first micro-batches
  std::int64_t summed_ = 0;
};

struct Measured {
  std::string problem;                     // why it could not run; empty: it ran, and the rest is known
  std::string note;                        // a remark on the run
  double step_ms = 0;                      // a whole step: the median, from fewer micro-batches where it has many
  double tokens_per_s = 0;                 // real targets: padding does not count
  double mfu = 0;                          // of the work of real tokens
  std::int64_t memory = 0;                 // bytes that the run holds on the device
  std::optional<double> joules_per_token;  // where the card counts its energy
  double waiting = 0;                      // share of the time spent waiting for batches
  double noise = 0;                        // share of the time by which another measurement may differ
  std::int64_t steps = 0;                  // timed

  bool done() const { return problem.empty(); }
};

struct MeasureOptions {
  double seconds = 5;              // of timed steps; start-up is not counted
  double peak_flops = 0;           // the peak of MFU
  const StopFlag* stop = nullptr;  // once set, measure() ends with an Interrupted
  const device::GpuMonitor* gpu = nullptr;
  bool without_data = false;  // token slots count, not real targets, and the wait for batches does not
};

// A configuration that cannot run here is a `problem` in the result, not an error: too little memory, a missing kernel,
// data that do not fit the model. The plan chooses an automatic batch size.
Measured measure(const config::Config& config, device::Device& device, const MeasureOptions& options);
// The same with the batch and the products as the configuration has them, and what is wrong is thrown.
Measured time_steps(const config::Config& config, device::Device& device, const MeasureOptions& options);

}  // namespace redline::perf
