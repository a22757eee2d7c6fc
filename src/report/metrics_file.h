// metrics.jsonl: one object a step, in the order of the steps. Equal numbers give equal text, so two runs can be
// compared as files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

// One row with its newline. Doubles in the shortest form that reads back the same; what is not finite is null.
std::string metrics_row(const train::StepMetrics& m);

class MetricsFile final : public train::Observer {
 public:
  MetricsFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {}

  void started(const train::RunHeader& header) override;  // cuts the file back to the step that the run goes on from
  void stepped(const train::StepMetrics& m) override;
  void before_checkpoint() override;
  void finished(const std::string& sentence) override;

 private:
  FileSystem& files_;
  Path path_;
  std::unique_ptr<FileWriter> file_;
};

}  // namespace redline::report
