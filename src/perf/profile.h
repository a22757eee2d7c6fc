// Training steps under a clock: real ones, on the configuration's own data, without metrics and checkpoints; nothing is
// written. A profile shows where their time goes: every node is timed, and nodes are summed by kind of op.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/signals.h"
#include "config/config.h"
#include "data/loader.h"
#include "device/device.h"
#include "model/engine.h"
#include "perf/plan.h"

namespace redline::train {
struct Team;
}

namespace redline::perf {

// Hears of each micro-batch before its nodes run.
class StepTimer : public program::NodeTimer {
 public:
  virtual void micro_batch(std::int64_t step, const data::Batch& batch) = 0;  // which stays until its nodes have run
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
  // With a team it is the step of one of several ranks, which all make the same calls.
  Steps(const config::Config& config, device::Device& device, const StopFlag* stop = nullptr,
        const train::Team* team = nullptr);

  // Makes one update over so many micro-batches, and returns when the device has done it.
  StepTimes step(std::int64_t index, std::int64_t micro_batches, StepTimer* timer = nullptr);
  // The same in two calls, as training does: the next step is queued before the last one is awaited. `seconds` is not
  // filled in.
  StepTimes queue(std::int64_t index, std::int64_t micro_batches, StepTimer* timer = nullptr);
  void take() { engine_.take_result(); }
  const program::ProgramSet& programs() const { return engine_.programs(); }

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

struct ProfileOptions {
  config::Config config;
  std::int64_t warmup = 2, steps = 10;
  double peak_flops = 0, copy_rate = 0;  // a second: the roofline; 0: not known
  std::function<void(std::int64_t done, std::int64_t of)> progress;
};

// A node, or all nodes of one op. Everything is the mean of a step.
struct TimedWork {
  std::string name;  // "layer 3/attention/backward", or the op's own
  std::string op;
  std::string phase;  // of a node: forward, backward or update
  std::string types;  // of elements read and written, "bf16>f32"; of an op, all that its nodes have
  double calls = 0;
  double ms = 0, share = 0;  // of the step's wall time
  double flops = 0, bytes = 0;
  double floor_ms = 0;  // by the roofline: the longer of its products and its bytes

  double of_roofline() const { return ms > 0 ? floor_ms / ms : 0; }
  double gflops() const { return ms > 0 ? flops / ms * 1e-6 : 0; }  // GFLOP/s
  double gbytes() const { return ms > 0 ? bytes / ms * 1e-6 : 0; }  // GB/s
};

// One run of one node; seconds since the first measured step began.
struct Span {
  std::int32_t node = 0;  // of Profile::nodes
  std::int64_t step = 0;
  double begin = 0, end = 0;
};

struct Profile {
  std::string device;
  std::int64_t steps = 0;
  double tokens = 0;       // real targets of a step
  double step_ms = 0;      // with every node timed
  double untimed_ms = 0;   // a step without timers; 0: not measured, where timers cost nothing
  double nodes_ms = 0;     // in nodes
  double data_ms = 0;      // waiting for batches
  double outside_ms = 0;   // all else: uploads, reading results back, the timer itself
  double model_flops = 0;  // of a step, as MFU counts them
  // Nodes by the type of their products' operands, "bf16"; and of these, where the model's weights have a narrower copy
  // for products, the names of those that take f32 all the same.
  std::map<std::string, std::int64_t> products;
  std::vector<std::string> upcast;
  std::vector<TimedWork> kinds;  // slowest first
  std::vector<TimedWork> nodes;  // in the order of the step
  std::vector<Span> spans;
};

// The types of a node's elements: what it reads, then what it writes. Scratch, scales, tables, and the inputs and
// results of a step are left out: f32 there widens nothing.
std::string types_of(const program::Node& node, const program::ProgramSet& set);
// Of a node with products, that of their first operand.
std::optional<DType> product_type(const program::Node& node, const program::ProgramSet& set);

// Data whose vocabulary is larger than the model's is a UserError, and so is a step that does not fit.
Profile profile(const ProfileOptions& options, device::Device& device);

// The parts of the device's time.
StepParts parts_of(const Profile& profile);

// In Chrome's trace format: one bar a run of a node. Open it in chrome://tracing or ui.perfetto.dev.
std::string chrome_trace(const Profile& profile);

}  // namespace redline::perf
