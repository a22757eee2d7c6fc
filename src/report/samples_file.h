// samples.jsonl: what the model wrote during training, one object for each time. Written where train.sample_every is set.
#pragma once

#include <memory>
#include <string>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

std::string samples_row(std::int64_t step, const std::vector<train::SampledText>& texts);  // with its newline

class SamplesFile final : public train::Observer {
 public:
  SamplesFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {}

  void started(const train::RunHeader& header) override;  // cuts the file back to the step that the run goes on from
  void sampled(std::int64_t step, const std::vector<train::SampledText>& texts) override;
  void before_checkpoint() override;

 private:
  FileSystem& files_;
  Path path_;
  std::unique_ptr<FileWriter> file_;
};

}  // namespace redline::report
