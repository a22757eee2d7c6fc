// Functions over any row of the table of metrics.
#include "report/metrics.h"

#include <fmt/format.h>

#include <cmath>

#include "io/json.h"

namespace redline::report {

std::optional<double> number_of(const Metric& metric, const train::StepMetrics& m) {
  const MetricValue value = metric.read(m);
  if (const auto* n = std::get_if<std::int64_t>(&value)) return static_cast<double>(*n);
  if (const auto* n = std::get_if<double>(&value)) return *n;
  if (const auto* text = std::get_if<std::string_view>(&value)) return text->empty() ? 0 : 1;
  return std::nullopt;
}

namespace {

// Names are a user's: what is no UTF-8 in them is replaced.
void put_named(std::string& row, const train::StepMetrics& m) {
  for (const NamedMetric& metric : kNamedMetrics)
    for (const auto& [name, value] : metric.read(m)) {
      const std::string key =
          io::Json(fmt::format("{}/{}", metric.key, name)).dump(-1, ' ', false, io::Json::error_handler_t::replace);
      row += fmt::format(",{}:{}", key, std::isfinite(value) ? fmt::format("{}", value) : "null");
    }
}

}  // namespace

// By hand: no JSON library promises the shortest form of a double.
std::string metrics_row(const train::StepMetrics& m) {
  std::string row;
  for (const Metric& metric : kMetrics) {
    const auto put = [&](const auto& value) {
      fmt::format_to(std::back_inserter(row), "{}\"{}\":{}", row.empty() ? '{' : ',', metric.key, value);
    };
    std::visit(overloaded{[](std::monostate) {}, [&](std::nullptr_t) { put("null"); }, [&](std::int64_t v) { put(v); },
                          [&](double v) { std::isfinite(v) ? put(v) : put("null"); },
                          // Words of our own: nothing in them needs escaping.
                          [&](std::string_view text) { put(fmt::format("\"{}\"", text)); }},
               metric.read(m));
  }
  put_named(row, m);
  return row + "}\n";
}

train::StepMetrics as_step(const train::Evaluated& e) {
  train::StepMetrics m;
  m.step = e.step;
  m.time = e.time;
  m.eval_loss = e.loss;
  m.eval_bits_per_byte = e.bits_per_byte;
  m.eval_tokens = e.tokens;
  m.eval_sets = e.sets;
  return m;
}

std::string evaluation_row(const train::Evaluated& e) {
  const auto key = [](Column c) { return kMetrics[c.index].key; };
  std::string row = fmt::format("{{\"{}\":{},\"{}\":{},\"{}\":{}", key("step"), e.step, key("time"), e.time,
                                key("eval_loss"), e.loss);
  if (e.bits_per_byte) row += fmt::format(",\"{}\":{}", key("eval_bits_per_byte"), *e.bits_per_byte);
  row += fmt::format(",\"{}\":{}", key("eval_tokens"), e.tokens);
  put_named(row, as_step(e));
  return row + "}\n";
}

std::string metrics_as_markdown() {
  std::string out = "| key | unit | what | TensorBoard | Prometheus |\n|---|---|---|---|---|\n";
  const auto code = [](std::string_view prefix, std::string_view name) {
    return name.empty() ? "" : fmt::format("`{}{}`", prefix, name);
  };
  for (const Metric& m : kMetrics)
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", m.key, m.unit, m.help, code("", m.tag),
                       code("redline_", m.gauge.name));
  for (const NamedMetric& m : kNamedMetrics)
    out += fmt::format("| `{0}/NAME` | {1} | {2} | `{3}/NAME` | `redline_{0}_of` |\n", m.key, m.unit, m.help, m.tag);
  return out;
}

}  // namespace redline::report
