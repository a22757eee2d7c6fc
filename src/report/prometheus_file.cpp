// Gauges of the last step, at most one file a second.
#include "report/prometheus_file.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/clock.h"
#include "report/metrics.h"
#include "report/run_record.h"

namespace redline::report {
namespace {

constexpr double kBetweenFiles = 1;  // seconds
constexpr std::string_view kNamedHelp = "The same figure of each held-out set, entry of the training data, or layer.";

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

std::string PrometheusFile::text() const {
  std::string out;
  const std::string label = label_value(run_);
  const auto figure = [&](std::string_view name, std::string_view kind, std::string_view help, double value) {
    out += fmt::format("# HELP redline_{0} {1}\n# TYPE redline_{0} {2}\nredline_{0}{{run=\"{3}\"}} {4}\n", name, help,
                       kind, label, number(value));
  };
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    figure(name, "gauge", help, value);
  };
  gauge("running", "1 while the run trains, 0 after its end.", running_ ? 1 : 0);
  gauge("steps", "Steps of the whole run.", static_cast<double>(steps_));
  figure("warnings_total", "counter", "Warnings of this session.", static_cast<double>(warnings_));
  if (saved_step_) gauge("checkpoint_step", "Step of the newest checkpoint.", static_cast<double>(*saved_step_));
  for (const Metric& m : kMetrics) {
    const Column column(m);
    const bool known =
        stepped_ || column == Column("step") || column == Column("eval_loss") || column == Column("eval_bits_per_byte");
    if (m.gauge.name.empty() || !known) continue;
    if (const auto value = number_of(m, last_)) gauge(m.gauge.name, m.gauge.help, *value * m.gauge.factor);
  }
  for (const NamedMetric& m : kNamedMetrics) {
    const auto values = m.read(last_);
    if (!values.empty())
      out += fmt::format("# HELP redline_{0}_of {1}\n# TYPE redline_{0}_of gauge\n", m.key, kNamedHelp);
    for (const auto& [name, value] : values)
      out +=
          fmt::format("redline_{}_of{{run=\"{}\",name=\"{}\"}} {}\n", m.key, label, label_value(name), number(value));
  }
  return out;
}

// Beside, then over it. No sync: after a power cut the old text would do as well.
void PrometheusFile::replace() {
  if (run_.empty()) return;
  Path beside = path_;
  beside += ".new";
  const auto file = files_.create(beside);
  file->write(text());
  file->close();
  files_.rename(beside, path_);
  written_ = steady_seconds();
}

void PrometheusFile::on(const train::Event& event) {
  const auto end = [&] {
    running_ = false;
    replace();
  };
  hear(
      event,
      [&](const train::Started& e) {
        if (e.nothing_left()) return;
        run_ = run_name(e.folder);
        steps_ = e.steps;
        last_.step = e.first_step;
        replace();
      },
      [&](const train::Evaluated& e) {
        last_.eval_loss = e.loss;
        last_.eval_bits_per_byte = e.bits_per_byte;
        last_.eval_sets = e.sets;
        replace();
      },
      [&](const train::Stepped& e) {
        const train::StepMetrics before = std::exchange(last_, e);
        if (!last_.eval_loss) {
          last_.eval_loss = before.eval_loss;
          last_.eval_bits_per_byte = before.eval_bits_per_byte;
          last_.eval_sets = before.eval_sets;
        }
        if (!last_.eval_loss_average) last_.eval_loss_average = before.eval_loss_average;
        if (!last_.norms) last_.norms = before.norms;
        if (last_.router && before.router && !last_.router->by_layer) last_.router->by_layer = before.router->by_layer;
        if (last_.sources.empty()) last_.sources = before.sources;
        if (!last_.account) last_.account = before.account;
        stepped_ = true;
        if (steady_seconds() - written_ >= kBetweenFiles) replace();
      },
      [&](const train::Saved& e) {
        saved_step_ = e.step;
        replace();
      },
      [&](const train::Planned& e) { steps_ = e.steps; }, [&](const train::Warning&) { ++warnings_; },
      [&](const train::Finished&) { end(); }, [&](const train::Failed&) { end(); });
}

}  // namespace redline::report
