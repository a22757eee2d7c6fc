// The median of steps: one that something else held up does not count.
#include "perf/pace.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "perf/steps.h"
#include "train/memory_advice.h"

namespace redline::perf {
namespace {

constexpr std::size_t kLeastSteps = 5;

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace

Pace measure_pace(const config::Config& config, device::Device& device, const PaceOptions& options) {
  train::require_memory(config, train::memory_needed(config, device.kind()), device);
  Steps steps(config, device, options.stop);
  std::int64_t index = 0;
  const auto run = [&] {
    end_if_asked(options.stop);
    return steps.step(index++, config.train.accumulate);
  };
  run();                           // products are tuned, attention is chosen
  if (device.runs_ahead()) run();  // graphs are replayed from here on
  std::vector<double> rates, times;
  const double begin = steady_seconds();
  for (double passed = 0; times.size() < kLeastSteps || passed < options.seconds; passed = steady_seconds() - begin) {
    const StepTimes t = run();
    times.push_back(1e3 * t.seconds);
    rates.push_back(t.tokens / t.seconds);
    const double of_steps = static_cast<double>(times.size()) / static_cast<double>(kLeastSteps);
    if (options.progress) options.progress(std::min({1.0, of_steps, (steady_seconds() - begin) / options.seconds}));
  }
  return {median(rates), median(times)};
}

}  // namespace redline::perf
