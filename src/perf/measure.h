// measure() runs a configuration on a device for some seconds, as training would (perf/profile.h has the steps), and
// says its speed. Nothing is written, and nothing stays on the device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/signals.h"
#include "config/config.h"
#include "device/device.h"
#include "device/gpu_monitor.h"

namespace redline::train {
struct Team;
}

namespace redline::perf {

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
  // Of several ranks: all of them measure the same configuration, in its parallel.mode, and get rank 0's figures, which
  // are of all ranks together. Not with `stop`: ranks end a step together or not at all.
  const train::Team* team = nullptr;
};

// A configuration that cannot run here is a `problem` in the result, not an error: too little memory, a missing kernel,
// data that do not fit the model. The plan chooses an automatic batch size.
Measured measure(const config::Config& config, device::Device& device, const MeasureOptions& options);

}  // namespace redline::perf
