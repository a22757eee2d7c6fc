// metrics.prom: the run as it stands, in Prometheus' text format, for node_exporter's textfile collector or anything that
// reads the format. It is replaced as a whole: a reader sees the old or the new, never a part.
#pragma once

#include <string>

#include "base/files.h"
#include "train/observer.h"

namespace redline::report {

// What the file says. Empty figures are left out.
struct RunStatus {
  std::string run;  // the label of every figure
  bool running = true;
  std::int64_t steps = 0, first_step = 0, warnings = 0;
  std::optional<std::int64_t> saved_step;
  std::optional<double> eval_loss;
  std::optional<train::StepMetrics> last;
};
std::string prometheus_text(const RunStatus& status);

class PrometheusFile final : public train::Observer {
 public:
  PrometheusFile(FileSystem& files, Path path) : files_(files), path_(std::move(path)) {}

  void started(const train::RunHeader& header) override;
  void evaluated(std::int64_t step, double loss) override;
  void stepped(const train::StepMetrics& m) override;
  void saved(std::int64_t step, const Path& folder, double seconds) override;
  void warning(const std::string& sentence) override;
  void finished(const std::string& sentence) override;
  void failed(const std::string& sentence) override;

 private:
  void replace();
  void end();

  FileSystem& files_;
  Path path_;
  bool open_ = false;
  double written_ = 0;  // on steady_seconds()
  RunStatus status_;
};

}  // namespace redline::report
