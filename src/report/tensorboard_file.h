// Writes a run for TensorBoard: one event file a session in the run's folder. A session that resumes a checkpoint voids
// the later steps of earlier sessions, by TensorBoard's own rule for restarts.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"
#include "report/log_file.h"
#include "train/observer.h"

namespace redline::report {

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
