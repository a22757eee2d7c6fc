// metrics.prom has the current figures of the run in Prometheus' text format, for node_exporter's textfile collector or
// any reader of the format. It is replaced as a whole: a reader sees the old file or the new one, never a part.
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
  bool stepped_ = false;     // until then `last_` has only the first step's number
  train::StepMetrics last_;  // with the held-out loss of the last evaluation
};

}  // namespace redline::report
