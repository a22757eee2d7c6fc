// Gauges of the last step, at most one file a second.
#include "report/prometheus_file.h"

#include <fmt/format.h>

#include <cmath>

#include "base/clock.h"
#include "report/run_name.h"

namespace redline::report {
namespace {

constexpr double kBetween = 1;  // seconds

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

std::string prometheus_text(const RunStatus& s) {
  std::string out;
  const std::string label = label_value(s.run);
  const auto figure = [&](std::string_view name, std::string_view kind, std::string_view help, double value) {
    out += fmt::format("# HELP redline_{0} {1}\n# TYPE redline_{0} {2}\nredline_{0}{{run=\"{3}\"}} {4}\n", name, help,
                       kind, label, number(value));
  };
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    figure(name, "gauge", help, value);
  };
  const auto known = [&](std::string_view name, std::string_view help, const std::optional<double>& value) {
    if (value) gauge(name, help, *value);
  };
  gauge("running", "1 while the run trains, 0 after its end.", s.running ? 1 : 0);
  gauge("steps", "Steps of the whole run.", static_cast<double>(s.steps));
  gauge("step", "Steps done.", static_cast<double>(s.last ? s.last->step : s.first_step));
  figure("warnings_total", "counter", "Warnings of this session.", static_cast<double>(s.warnings));
  if (s.saved_step) gauge("checkpoint_step", "Step of the newest checkpoint.", static_cast<double>(*s.saved_step));
  known("eval_loss", "Held-out loss at the last evaluation.", s.eval_loss);
  if (!s.last) return out;
  const train::StepMetrics& m = *s.last;
  gauge("last_step_timestamp_seconds", "When the last step ended.", m.time);
  gauge("loss", "Loss of the last step.", m.loss);
  gauge("grad_norm", "Norm of the gradient before clipping.", m.grad_norm);
  gauge("learning_rate", "Learning rate.", m.lr);
  gauge("step_seconds", "Time of the last step.", m.step_ms * 1e-3);
  gauge("data_wait_seconds", "Time of the last step that went to waiting for data.", m.data_wait_ms * 1e-3);
  gauge("tokens_per_second", "Real tokens a second.", m.tokens_per_s);
  gauge("padding_ratio", "Share of token slots that hold none.", m.padding);
  gauge("model_flops_per_second", "Model FLOPs a second.", m.tflops * 1e12);
  gauge("mfu_ratio", "Model FLOPs utilisation.", m.mfu);
  gauge("mfu_palm_ratio", "The same, masked pairs counted as work.", m.mfu_palm);
  gauge("memory_bytes", "Bytes of the run's arena.", m.memory_gib * 0x1p30);
  if (!m.gpu) return out;
  known("gpu_utilisation_ratio", "Share of time in which a kernel ran.", m.gpu->utilisation);
  known("gpu_temperature_celsius", "Temperature of the card.", m.gpu->temperature_c);
  known("gpu_power_watts", "Power of the card.", m.gpu->power_w);
  if (m.gpu->clock_mhz) gauge("gpu_clock_hertz", "Clock of the multiprocessors.", *m.gpu->clock_mhz * 1e6);
  if (m.gpu->throttle)
    gauge("gpu_throttled", "1 while the card holds its clocks down; under full load its power cap does.",
          m.gpu->throttle->empty() ? 0 : 1);
  return out;
}

// Beside, then over it. No sync: after a power cut the old text would do as well.
void PrometheusFile::replace() {
  if (!open_) return;
  Path beside = path_;
  beside += ".new";
  const auto file = files_.create(beside);
  file->write(prometheus_text(status_));
  file->close();
  files_.rename(beside, path_);
  written_ = steady_seconds();
}

void PrometheusFile::started(const train::RunHeader& h) {
  if (h.first_step >= h.steps) return;
  status_.run = run_name(h.folder);
  status_.steps = h.steps;
  status_.first_step = h.first_step;
  open_ = true;
  replace();
}

void PrometheusFile::evaluated(std::int64_t, double loss) {
  status_.eval_loss = loss;
  replace();
}

void PrometheusFile::stepped(const train::StepMetrics& m) {
  status_.last = m;
  if (steady_seconds() - written_ >= kBetween) replace();
}

void PrometheusFile::saved(std::int64_t step, const Path&, double) {
  status_.saved_step = step;
  replace();
}

void PrometheusFile::warning(const std::string&) { ++status_.warnings; }

void PrometheusFile::end() {
  status_.running = false;
  replace();
}
void PrometheusFile::finished(const std::string&) { end(); }
void PrometheusFile::failed(const std::string&) { end(); }

}  // namespace redline::report
