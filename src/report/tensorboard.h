// TensorBoard's event files: their records byte by byte, and the sink that writes a run with them. docs/formats.md
// writes the format down.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "report/rows_file.h"
#include "train/observer.h"

namespace redline::report::tensorboard {

std::uint32_t crc32c(std::string_view bytes);

// One message as a file holds it: its length and the message, each followed by its check sum.
std::string record(std::string_view message);

// Messages, ready for record(). Every one is an Event with its time (seconds since 1970) and step.
std::string version_event(double time);                     // the first of every file
std::string restart_event(double time, std::int64_t step);  // voids all that was written for this step and later

using Scalar = std::pair<std::string_view, double>;  // tag and value
std::string scalars_event(double time, std::int64_t step, std::span<const Scalar> scalars);

std::string text_event(double time, std::int64_t step, std::string_view tag, std::string_view markdown);

// Needs at least one value. Buckets grow by a tenth, as TensorBoard's own.
std::string histogram_event(double time, std::int64_t step, std::string_view tag, std::span<const double> values);

}  // namespace redline::report::tensorboard

namespace redline::report {

// Writes one event file a session into the run's folder. A session that resumes a checkpoint voids the later steps of
// earlier sessions, by TensorBoard's own rule for restarts.
class TensorboardFile final : public train::Observer {
 public:
  TensorboardFile(FileSystem& files, Path folder) : files_(files), folder_(std::move(folder)), file_(files) {}

  void on(const train::Event& event) override;

 private:
  void start(const train::RunHeader& header);
  void step(const train::StepMetrics& m);
  void samples(const train::Sampled& sampled);
  std::string histogram(double time);  // as a record

  FileSystem& files_;
  Path folder_;
  LogFile file_;
  std::int64_t step_ = 0;
  std::vector<double> step_times_;  // since the last histogram, in ms
};

}  // namespace redline::report
