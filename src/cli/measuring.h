// The parts that the commands ladder and tune share: a device with its peak and its monitor, the bench on it, a
// progress line with the time that is left, and the files of the table.
#pragma once

#include <memory>
#include <string>

#include "cli/config_words.h"
#include "cli/ladder_table.h"
#include "perf/measure.h"
#include "perf/peak.h"
#include "report/live_line.h"
#include "train/signals.h"

namespace redline::cli {

class Measuring {
 public:
  // `what` begins the progress line. From here on Ctrl-C ends the measurements, and the command shows the rows it has.
  Measuring(std::string what, const std::string& device_name, double seconds);

  const perf::Bench& bench() const { return bench_; }
  const device::Device& device() const { return *device_; }
  // Sets the stop flag of the options, and the progress line that is shown before each measurement.
  template <class Options>
  void take(Options& options) {
    options.stop = &signals_.caught();
    options.progress = [this](const std::string& name, std::size_t number, std::size_t of) { show(name, number, of); };
  }
  void clear() { line_.clear(); }
  // "batch 128 x 1024 tokens, data ping; peak 989 TFLOP/s (datasheet, dense bf16)".
  std::string about(const config::Config& config) const;

 private:
  void show(const std::string& name, std::size_t number, std::size_t of);

  train::StopSignals signals_;
  std::string what_;
  double seconds_, begin_;
  std::unique_ptr<device::Device> device_;
  perf::Peak peak_;
  std::unique_ptr<device::GpuMonitor> gpu_;
  perf::Bench bench_;
  report::LiveLine line_;
};

// Loads the configuration with keys changed.
perf::LoadConfig with_keys(const config::Sources& sources);

// The files of --html and --json, and whether the table is printed as Markdown (--markdown).
struct TableFiles {
  std::string html, json;
  bool markdown = false;

  void declare(Arguments& arguments);
  void check(const config::Sources& sources) const;  // a file that cannot be written is a UserError
  void write(const MeasuredTable& table) const;      // prints the table, and says where the files are
};

}  // namespace redline::cli
