// What the ladder and tune ask of a device: what a configuration reaches, whether it fits, which batch sizes are worth
// a look. Tests answer in its place.
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
  std::function<std::vector<Setting>(const config::Config& config)> settings;  // by the plan, the best first
};

// Of a device; it, the flag and the monitor outlive the bench.
Bench bench_on(device::Device& device, const MeasureOptions& options);

}  // namespace redline::perf
