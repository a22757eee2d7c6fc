// What can be asked of any row of the table.
#include "report/metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace redline::report {

std::optional<double> number_of(const Metric& metric, const train::StepMetrics& m) {
  const MetricValue value = metric.read(m);
  if (const auto* n = std::get_if<std::int64_t>(&value)) return static_cast<double>(*n);
  if (const auto* n = std::get_if<double>(&value)) return *n;
  if (const auto* text = std::get_if<std::string_view>(&value)) return text->empty() ? 0 : 1;
  return std::nullopt;
}

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
  return row + "}\n";
}

std::string evaluation_row(std::int64_t step, double time, double eval_loss) {
  const auto key = [](Column c) { return kMetrics[c.index].key; };
  return fmt::format("{{\"{}\":{},\"{}\":{},\"{}\":{}}}\n", key("step"), step, key("time"), time, key("eval_loss"),
                     eval_loss);
}

std::string metrics_as_markdown() {
  std::string out = "| key | unit | what | TensorBoard | Prometheus |\n|---|---|---|---|---|\n";
  const auto code = [](std::string_view prefix, std::string_view name) {
    return name.empty() ? "" : fmt::format("`{}{}`", prefix, name);
  };
  for (const Metric& m : kMetrics)
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", m.key, m.unit, m.help, code("", m.tag),
                       code("redline_", m.gauge.name));
  return out;
}

}  // namespace redline::report
