// Writes rows by hand: the keys are few, and no JSON library promises the shortest form of a double.
#include "report/metrics_file.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace redline::report {
namespace {

constexpr std::string_view kRowStart = "{\"step\":";

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

// The step of one line without its newline; -1 when it is not a whole row of ours.
std::int64_t step_of(std::string_view line) {
  if (!line.starts_with(kRowStart) || !line.ends_with('}')) return -1;
  line.remove_prefix(kRowStart.size());
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
  return error == std::errc() && end != line.data() + line.size() && *end == ',' ? step : -1;
}

}  // namespace

std::string metrics_row(const train::StepMetrics& m) {
  std::string row = fmt::format("{}{}", kRowStart, m.step);
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

std::size_t whole_rows(std::string_view text, std::int64_t last_step) {
  std::size_t kept = 0;
  for (std::size_t end; (end = text.find('\n', kept)) != text.npos; kept = end + 1) {
    const std::int64_t step = step_of(text.substr(kept, end - kept));
    if (step < 0 || step > last_step) break;
  }
  return kept;
}

void MetricsFile::started(const train::RunHeader& header) {
  if (path_.has_parent_path()) files_.create_folders(path_.parent_path());
  if (files_.exists(path_)) {
    const std::string text = files_.read(path_);
    if (const std::size_t kept = whole_rows(text, header.first_step); kept < text.size()) files_.truncate(path_, kept);
  }
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
