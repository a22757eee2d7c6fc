// Bench answers the questions of ladder and tune: how fast a configuration is, whether it fits, which batch sizes are
// worth a try. Tests have answers of their own.
#pragma once

#include <functional>
#include <vector>

#include "perf/measure.h"
#include "perf/plan.h"

namespace redline::perf {

struct Bench {
  device::Kind kind = device::Kind::cpu;
  std::function<Measured(const config::Config& config, double seconds)> measure;
  std::function<bool(const config::Config& config)> fits;
  std::function<std::vector<Setting>(const config::Config& config)> settings;  // the plan's, the best first
};

// Answers for a device. The device, the stop flag and the monitor must outlive the bench.
Bench bench_on(device::Device& device, const MeasureOptions& options);

}  // namespace redline::perf
