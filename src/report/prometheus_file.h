// metrics.prom: the run as it stands, in Prometheus' text format, for node_exporter's textfile collector or anything
// that reads the format. It is replaced as a whole: a reader sees the old or the new, never a part.
#pragma once

#include <string>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

class PrometheusFile final : public train::Observer {
 public:
  PrometheusFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {}

  void on(const train::Event& event) override;

 private:
  std::string text() const;
  void replace();

  FileSystem& files_;
  Path path_;
  double written_ = 0;  // on steady_seconds()
  std::string run_;     // the label of every figure; empty: not started
  bool running_ = true;
  std::int64_t steps_ = 0, warnings_ = 0;
  std::optional<std::int64_t> saved_step_;
  bool stepped_ = false;     // before that, `last_` says where the run begins and no more
  train::StepMetrics last_;  // with the held-out loss of the last evaluation
};

}  // namespace redline::report
