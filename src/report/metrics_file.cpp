// Writes rows by hand: the keys are few, and no JSON library promises the shortest form of a double.
#include "report/metrics_file.h"

#include <fmt/format.h>

#include <cmath>

#include "report/appended_rows.h"

namespace redline::report {
namespace {

void put(std::string& row, std::string_view key, double value) {
  if (std::isfinite(value))
    fmt::format_to(std::back_inserter(row), ",\"{}\":{}", key, value);
  else
    fmt::format_to(std::back_inserter(row), ",\"{}\":null", key);
}

// What the card does not tell is null.
void put_gpu(std::string& row, const device::GpuSample& g) {
  put(row, "gpu_utilisation", g.utilisation.value_or(NAN));
  put(row, "gpu_temperature_c", g.temperature_c.value_or(NAN));
  put(row, "gpu_power_w", g.power_w.value_or(NAN));
  put(row, "gpu_clock_mhz", g.clock_mhz.value_or(NAN));
  // Words of our own: nothing in them needs escaping.
  row += g.throttle ? fmt::format(",\"gpu_throttle\":\"{}\"", *g.throttle) : ",\"gpu_throttle\":null";
}

}  // namespace

std::string metrics_row(const train::StepMetrics& m) {
  std::string row = fmt::format("{}{}", kStepRowStart, m.step);
  put(row, "time", m.time);
  put(row, "loss", m.loss);
  put(row, "grad_norm", m.grad_norm);
  put(row, "lr", m.lr);
  put(row, "step_ms", m.step_ms);
  fmt::format_to(std::back_inserter(row), ",\"tokens\":{}", m.tokens);
  put(row, "tokens_per_s", m.tokens_per_s);
  put(row, "padding", m.padding);
  put(row, "tflops", m.tflops);
  put(row, "mfu", m.mfu);
  put(row, "mfu_palm", m.mfu_palm);
  put(row, "data_wait_ms", m.data_wait_ms);
  put(row, "memory_gib", m.memory_gib);
  if (m.truncated_tokens) fmt::format_to(std::back_inserter(row), ",\"truncated_tokens\":{}", *m.truncated_tokens);
  if (m.eval_loss) put(row, "eval_loss", *m.eval_loss);
  if (m.gpu) put_gpu(row, *m.gpu);
  return row + "}\n";
}

void MetricsFile::started(const train::RunHeader& header) {
  if (path_.has_parent_path()) files_.create_folders(path_.parent_path());
  cut_back(files_, path_, header.first_step);
  file_ = files_.append(path_);
}

// One write a row: a reader that follows the file never sees a part of one while the machine lives.
void MetricsFile::stepped(const train::StepMetrics& m) {
  if (file_) file_->write(metrics_row(m));
}

void MetricsFile::before_checkpoint() {
  if (file_) file_->sync();
}

void MetricsFile::finished(const std::string&) {
  if (file_) file_->sync();
}

}  // namespace redline::report
