// measure() runs a configuration on a device for some seconds and tells its speed. It runs the engine that training
// would build, on the configuration's own data. Nothing is written, and nothing stays on the device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/signals.h"
#include "config/config.h"
#include "device/device.h"
#include "device/gpu_monitor.h"
#include "perf/plan.h"

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
};

// A configuration that cannot run here is a `problem` in the result, not an error: too little memory, a missing kernel,
// data that do not fit the model.
Measured measure(const config::Config& config, device::Device& device, const MeasureOptions& options);

// The ladder and tune ask it of a device: what a configuration reaches, whether it fits, which batch sizes are worth a
// look. Tests answer in its place.
struct Bench {
  device::Kind kind = device::Kind::cpu;
  std::function<Measured(const config::Config& config, double seconds)> measure;
  std::function<bool(const config::Config& config)> fits;
  std::function<std::vector<Setting>(const config::Config& config)> settings;  // by the plan, the best first
};

// Of a device; it, the flag and the monitor outlive the bench.
Bench bench_on(device::Device& device, const MeasureOptions& options);

}  // namespace redline::perf
