// data_pipeline.jsonl: what each stage of the data pipeline did, one object an interval. Written where data.debug is on.
#pragma once

#include <memory>
#include <string>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

std::string pipeline_row(const data::PipelineFigures& figures, double time, std::int64_t step);  // with its newline

class PipelineFile final : public train::Observer {
 public:
  PipelineFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {}

  void started(const train::RunHeader& header) override { step_ = header.first_step; }
  void stepped(const train::StepMetrics& m) override { step_ = m.step; }
  void pipeline(const data::PipelineFigures& figures) override;

 private:
  FileSystem& files_;
  Path path_;
  std::int64_t step_ = 0;
  std::unique_ptr<FileWriter> file_;
};

}  // namespace redline::report
