// Training steps for measurements: as the trainer makes them, on the configuration's own data, without metrics and
// checkpoints. Nothing is written.
#pragma once

#include <cstdint>
#include <memory>

#include "config/config.h"
#include "data/loader.h"
#include "device/device.h"
#include "model/engine.h"

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

// Of one micro-batch, in the mean.
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
  // kind of batches get the same figures. Reads on to there; nothing can be run behind it.
  Work work();

  const model::Engine& engine() const { return engine_; }

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

}  // namespace redline::perf
