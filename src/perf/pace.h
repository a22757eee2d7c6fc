// How fast a configuration trains on a device: real steps on its own data, waiting included. Nothing is written.
#pragma once

#include <functional>

#include "base/interrupt.h"
#include "config/config.h"
#include "device/device.h"

namespace redline::perf {

struct Pace {
  double tokens_per_s = 0;  // real targets
  double step_ms = 0;
};

struct PaceOptions {
  double seconds = 3;                          // that are timed, and at least kLeastSteps steps
  const StopFlag* stop = nullptr;              // set: an Interrupted
  std::function<void(double share)> progress;  // of what is timed
};

// A step that does not fit, and data that the model cannot take, are UserErrors.
Pace measure_pace(const config::Config& config, device::Device& device, const PaceOptions& options);

}  // namespace redline::perf
