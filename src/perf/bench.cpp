// A device's own answers.
#include "perf/bench.h"

#include "perf/auto_batch.h"
#include "train/memory_advice.h"

namespace redline::perf {

Bench bench_on(device::Device& device, const MeasureOptions& options) {
  Bench bench;
  bench.kind = device.kind();
  bench.measure = [&device, options](const config::Config& config, double seconds) {
    MeasureOptions own = options;
    own.seconds = seconds;
    return measure(config, device, own);
  };
  // Some is left for what libraries and tuning take.
  bench.fits = [&device](const config::Config& config) {
    constexpr double kMost = 0.9;
    return static_cast<double>(train::memory_needed(config, device.kind())) <=
           kMost * static_cast<double>(device.available_bytes());
  };
  bench.settings = [&device](const config::Config& config) {
    std::vector<Setting> settings;
    for (const Plan& p : choose(config, machine_now(device)).best) settings.push_back(p.setting);
    return settings;
  };
  return bench;
}

}  // namespace redline::perf
