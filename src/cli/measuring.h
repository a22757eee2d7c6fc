// Searches that measure on a device, as commands run them: a device with its peak and its monitor, the bench on it, a
// progress line with the time that is left, and the search of train.batch_size = "auto".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/config.h"
#include "cli/ranks.h"
#include "perf/peak.h"
#include "perf/search.h"
#include "report/live_line.h"
#include "train/signals.h"

namespace redline::perf {
struct Profile;
struct ProfileOptions;
}  // namespace redline::perf

namespace redline::cli {

class Measuring {
 public:
  // `what` begins the progress line. From here on Ctrl-C ends the measurements, and the command shows the rows it has.
  // On several ranks all of them measure the same, rank 0 decides, and Ctrl-C ends them as it ends any program.
  Measuring(std::string what, const std::string& device_name, double seconds, Ranks* ranks = nullptr);

  const perf::Bench& bench() const { return bench_; }
  const device::Device& device() const { return *device_; }
  // Sets the stop flag of the options, and the progress line that is shown before each measurement.
  void take(perf::SearchOptions& options);
  void clear() { line_.clear(); }
  // "batch 128 x 1024 tokens, data ping; peak 989 TFLOP/s (datasheet, dense bf16)".
  std::string about(const config::Config& config) const;

 private:
  void show(const std::string& name, std::size_t number, std::size_t of);

  const StopFlag* stop() const { return signals_ ? &signals_->caught() : nullptr; }

  std::optional<train::StopSignals> signals_;
  std::string what_;
  double seconds_, begin_;
  std::unique_ptr<device::Device> device_;
  perf::Peak peak_;
  bool shows_ = true;  // a progress line
  train::Team team_;
  std::unique_ptr<device::GpuMonitor> gpu_;
  perf::Bench bench_;
  report::LiveLine line_;
};

// Loads the configuration with keys changed, as load_to_measure() does for so many ranks.
perf::LoadConfig with_keys(const config::Sources& sources, std::int64_t ranks = 1);

// Profiles with a progress line, which `what` begins.
perf::Profile profile_on(device::Device& device, perf::ProfileOptions options, std::string_view what);

// Puts numbers in place of train.batch_size = "auto", with a progress line, and returns a sentence that says which and
// why. Where the configuration has a number already, nothing changes and the sentence is empty. Without `measure`, and
// on several ranks, the plan alone decides.
std::string resolve_batch_size(config::Config& config, device::Device& device, bool measure,
                               const StopFlag* stop = nullptr, int ranks = 1, int ranks_on_machine = 1);

}  // namespace redline::cli
