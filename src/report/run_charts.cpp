// A curve is drawn three times, over each x axis; the page's style shows one. The values themselves come along once, for
// the script that shows them under the pointer.
#include "report/run_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/counted.h"
#include "report/curves.h"
#include "report/figures.h"
#include "report/html.h"
#include "report/svg.h"

namespace redline::report {
namespace {

constexpr std::size_t kPoints = 1000;  // of a curve
constexpr double kPageWidth = 1090, kHalfWidth = 525;

struct XAxis {
  std::string kind, label;
  double unit = 1;
  std::vector<double> (*of)(const RunRecord&);
};

// Seconds, minutes or hours, whichever keeps the longest run's numbers short.
std::array<XAxis, 3> x_axes(const Runs& runs) {
  double longest = 0;
  for (const RunRecord& run : runs)
    if (run.rows()) longest = std::max(longest, run.seconds_so_far.back());
  const double unit = longest > 3 * 3600 ? 3600 : longest > 180 ? 60 : 1;
  return {{{"step", "step", 1, [](const RunRecord& r) { return std::vector<double>(r.steps.begin(), r.steps.end()); }},
           {"tokens", "tokens", 1, [](const RunRecord& r) { return r.tokens_so_far; }},
           {"time",
            unit == 3600 ? "hours"
            : unit == 60 ? "minutes"
                         : "seconds",
            unit, [](const RunRecord& r) { return r.seconds_so_far; }}}};
}

std::string_view name_of(Figure figure) {
  constexpr std::array<std::string_view, 5> kNames = {"number", "share", "rate", "milliseconds", "exponent"};
  return kNames[static_cast<std::size_t>(figure)];
}

std::string written(Figure figure, double v) {
  switch (figure) {
    case Figure::share: return fmt::format("{:.4g}%", 100 * v);
    case Figure::rate: return short_count(v);
    case Figure::milliseconds: return v == 0 ? "0" : duration(v * 1e-3);
    case Figure::exponent: return v == 0 ? "0" : fmt::format("{:.2g}", v);
    case Figure::number: break;
  }
  return fmt::format("{:.4g}", v);
}

struct Curve {
  std::string name;
  std::size_t colour;
  const RunRecord* record;
  std::vector<double> values;
  bool smooth = false, dots = false;
};

std::vector<Curve> curves_of(const Runs& runs, const Metric& metric) {
  const Panel& panel = metric.panel;
  std::vector<Curve> all;
  const auto add = [&](std::size_t run, Column column, std::string name, bool smooth, bool dots) {
    const std::size_t colour = dots && runs.size() == 1 ? run_colour(1) : run_colour(run);
    Curve c{std::move(name), colour, &runs[run], runs[run].column(column), smooth, dots};
    for (double& v : c.values) v = std::isfinite(v) ? v : NAN;
    if (std::ranges::any_of(c.values, [](double v) { return !std::isnan(v); })) all.push_back(std::move(c));
  };
  const bool several = runs.size() > 1;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::string own(panel.is(kEvaluations) ? "training" : panel.title);
    add(r, Column(metric), several ? runs[r].name : own, panel.is(kSmooth), false);
    if (panel.is(kEvaluations)) add(r, "eval_loss", several ? runs[r].name + ", held out" : "held out", false, true);
  }
  return all;
}

// The y axis: all of the values but the rarest spikes, which touch its end.
Axis y_axis(const std::vector<Curve>& all, const Panel& panel) {
  double low = INFINITY, high = -INFINITY;
  for (const Curve& c : all) {
    low = std::min(low, quantile(c.values, 0));
    const double most = quantile(c.values, 1), usual = quantile(c.values, 0.995);
    high = std::max(high, panel.is(kSmooth) && most > 2 * usual ? 1.2 * usual : most);
  }
  const double room = high > low ? 0.06 * (high - low) : std::max(std::fabs(high) * 0.1, 1e-9);
  Axis y{"", panel.is(kFromZero) ? std::min(low, 0.0) : low - room, high + room, false, {}};
  if (low >= 0) y.low = std::max(y.low, 0.0);
  y.written = [figure = panel.figure](double v) { return written(figure, v); };
  return y;
}

double rounded(double v, int digits) {
  if (v == 0 || !std::isfinite(v)) return v;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::fabs(v))));
  return std::round(v * scale) / scale;
}

// What the script needs; "<" is written so that no text can end the element.
std::string values_element(const io::Json& values) {
  std::string text = values.dump(-1, ' ', false, io::Json::error_handler_t::replace), safe;
  for (const char c : text) c == '<' ? safe += "\\u003c" : safe += c;
  return "<script type=\"application/json\">" + safe + "</script>\n";
}

// `legend` is HTML.
std::string card(const std::string& title, bool wide, const std::string& content, const std::string& legend = "") {
  return fmt::format("<figure class=\"card{}\"><figcaption>{}{}</figcaption>\n{}</figure>\n", wide ? " whole" : "",
                     escaped(title), legend, content);
}

// Which line is which, where a plot has two kinds of them.
std::string legend_of(const Panel& panel, const Runs& runs) {
  const auto evaluated = [](const RunRecord& run) {
    return std::ranges::any_of(run.column("eval_loss"), [](double v) { return !std::isnan(v); });
  };
  if (!panel.is(kEvaluations) || std::ranges::none_of(runs, evaluated)) return {};
  if (runs.size() > 1) return "<span class=\"key\">lines: training; dots: held out</span>";
  return fmt::format(
      "<span class=\"key\"><span class=\"chip k{}\"></span>training</span>"
      "<span class=\"key\"><span class=\"chip k{}\"></span>held out</span>",
      run_colour(0), run_colour(1));
}

std::vector<LineSeries> lines_of(const Curve& c, const XAxis& axis, const std::vector<std::size_t>& kept) {
  const std::vector<double> x = axis.of(*c.record);
  const auto line = [&](const std::vector<double>& values, const std::vector<std::size_t>& at) {
    LineSeries s{"", c.colour, {}, c.dots, false, c.dots};
    for (const std::size_t i : at) s.points.push_back({x[i] / axis.unit, values[i], ""});
    return s;
  };
  if (!c.smooth) return {line(c.values, kept)};
  // Twice, so that a spike becomes a hill and not a block.
  const double window = std::max(4.0, static_cast<double>(c.values.size()) / 60);
  const std::vector<double> mean = smoothed(smoothed(c.values, window), window);
  LineSeries raw = line(c.values, kept);
  raw.faint = true;
  return {std::move(raw), line(mean, thinned(mean, kPoints / 2))};
}

std::vector<Mark> resumes(const Runs& runs, const XAxis& axis) {
  std::vector<Mark> marks;
  for (const RunRecord& run : runs) {
    const std::vector<double> x = axis.of(run);
    for (const SessionStart& s : run.sessions) {
      const auto row = std::ranges::lower_bound(run.steps, s.first_step);
      if (s.first_step > 0 && row != run.steps.end())
        marks.push_back({x[static_cast<std::size_t>(row - run.steps.begin())] / axis.unit,
                         runs.size() > 1 ? run.name + " resumed" : "resumed"});
    }
  }
  return marks;
}

std::string plot(const Runs& runs, const Metric& metric) {
  const Panel& panel = metric.panel;
  const std::vector<Curve> all = curves_of(runs, metric);
  if (all.empty()) return {};
  std::vector<std::vector<std::size_t>> kept;
  for (const Curve& c : all) kept.push_back(thinned(c.values, kPoints));
  std::string content;
  const std::array<XAxis, 3> axes = x_axes(runs);
  for (const XAxis& axis : axes) {
    Chart chart;
    chart.title = fmt::format("{} by {}", panel.title, axis.kind);
    chart.kind = axis.kind;
    chart.width = panel.is(kWide) ? kPageWidth : kHalfWidth;
    chart.height = panel.is(kWide) ? 380 : 250;
    chart.y = y_axis(all, panel);
    chart.x = {axis.label, 0, 0, false, short_count};
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (LineSeries& line : lines_of(all[i], axis, kept[i])) chart.lines.push_back(std::move(line));
      for (const Point& p : chart.lines.back().points) chart.x.high = std::max(chart.x.high, p.x);
    }
    // Means are drawn over the values behind them, dots over both.
    std::ranges::stable_sort(chart.lines, {}, [](const LineSeries& l) { return l.faint ? 0 : l.dots ? 2 : 1; });
    if (panel.is(kEvaluations)) chart.marks = resumes(runs, axis);
    content += fmt::format("<div class=\"by-{} scroll\">{}</div>\n", axis.kind, draw(chart));
  }
  io::Json values = {{"figure", name_of(panel.figure)}, {"series", io::Json::array()}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    io::Json series = {{"name", all[i].name}, {"colour", all[i].colour}, {"y", io::Json::array()}};
    for (const std::size_t at : kept[i]) series["y"].push_back(rounded(all[i].values[at], 5));
    for (const XAxis& axis : axes) {
      const std::vector<double> x = axis.of(*all[i].record);
      io::Json& list = series[axis.kind] = io::Json::array();
      for (const std::size_t at : kept[i]) list.push_back(rounded(x[at] / axis.unit, 6));
    }
    values["series"].push_back(std::move(series));
  }
  values["units"] = {{"time", axes[2].label}};
  return card(std::string(panel.title), panel.is(kWide), content + values_element(values), legend_of(panel, runs));
}

std::string step_times(const Runs& runs) {
  constexpr int kBins = 32;
  double low = INFINITY, high = 0;
  std::vector<std::pair<std::size_t, std::vector<double>>> all;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    std::vector<double> ms = runs[r].column("step_ms");
    std::erase_if(ms, [](double v) { return !std::isfinite(v); });
    if (ms.empty()) continue;
    const double least = quantile(ms, 0);
    low = std::min(low, least);
    high = std::max(high, least + 1.15 * (quantile(ms, 0.98) - least));
    all.emplace_back(r, std::move(ms));
  }
  if (all.empty()) return {};
  if (!(high > low)) high = low * 1.1 + 1e-6;
  Chart chart;
  chart.title = "step times";
  chart.width = kHalfWidth;
  chart.height = 250;
  chart.x = {"ms; the last bar holds all that is slower", low, high, false, {}};
  chart.y = {"", 0, 0, false, [](double v) { return fmt::format("{:.4g}%", 100 * v); }};
  for (const auto& [r, ms] : all) {
    std::vector<double> counts(kBins);
    for (const double v : ms)
      counts[static_cast<std::size_t>(std::clamp((v - low) / (high - low) * kBins, 0.0, kBins - 1.0))] += 1;
    BarSeries series{runs[r].name, run_colour(r), {}};
    for (int b = 0; b < kBins; ++b) {
      const double n = counts[static_cast<std::size_t>(b)], share = n / static_cast<double>(ms.size());
      if (n == 0) continue;
      const double from = low + (high - low) * b / kBins, to = low + (high - low) * (b + 1) / kBins;
      const std::string range =
          b + 1 == kBins ? fmt::format("{:.4g} ms and more", from) : fmt::format("{:.4g} to {:.4g} ms", from, to);
      series.bars.push_back(
          {from, to, share, fmt::format("{}: {:.0f} {}, {}", range, n, noun_for(n, "step"), percent(share))});
      chart.y.high = std::max(chart.y.high, share * 1.05);
    }
    chart.bars.push_back(std::move(series));
  }
  return card("Step times", false, "<div class=\"scroll\">" + draw(chart) + "</div>\n");
}

}  // namespace

std::size_t run_colour(std::size_t run) {
  constexpr std::array<std::size_t, kColours> kOrder = {2, 0, 3, 5, 1, 6, 7, 4};
  return kOrder[run % kColours];
}

std::string curves(const Runs& runs, Section section) {
  std::vector<const Metric*> shown;
  for (const Metric& m : kMetrics)
    if (m.panel.section == section) shown.push_back(&m);
  std::ranges::stable_sort(shown, {}, [](const Metric* m) { return m->panel.place; });
  std::string out;
  for (const Metric* m : shown) out += (m->panel.is(kWithStepTimes) ? step_times(runs) : "") + plot(runs, *m);
  return out;
}

std::string memory_bars(const Runs& runs) {
  constexpr std::array<std::pair<std::string_view, std::size_t>, 5> kKinds = {
      {{"parameters", 2}, {"working copies", 1}, {"gradients", 3}, {"moments", 5}, {"activations", 0}}};
  std::vector<Stack> stacks;
  for (const RunRecord& run : runs) {
    if (run.sessions.empty() || run.sessions.back().memory.empty()) continue;
    const SessionStart& start = run.sessions.back();
    Stack stack{runs.size() > 1 ? run.name : "", "", {}, 0};
    double total = 0, other = 0;
    const auto title = [](std::string_view kind, double size) { return fmt::format("{}: {}", kind, bytes(size)); };
    for (const auto& [kind, size] : start.memory) {
      if (kind == "total") {
        total = size;
        continue;
      }
      const auto known = std::ranges::find(kKinds, kind, &std::pair<std::string_view, std::size_t>::first);
      if (known == kKinds.end())
        other += size;
      else
        stack.parts.push_back({kind, size, known->second, title(kind, size)});
    }
    if (other > 0) stack.parts.push_back({"other", other, 4, title("inputs, outputs, constants and scratch", other)});
    // On a card the rest of its memory is worth seeing; a host has other things to do with its own.
    const bool card_memory = !start.device.starts_with("CPU") && start.device_memory > 0;
    stack.whole = card_memory ? start.device_memory : 0;
    stack.written = card_memory ? fmt::format("{} of {}", bytes(total), bytes(start.device_memory)) : bytes(total);
    stacks.push_back(std::move(stack));
  }
  return stacks.empty()
             ? ""
             : card("What the run holds on its device", true,
                    "<div class=\"scroll\">" + draw_stacks("memory by kind", stacks, kPageWidth) + "</div>\n");
}

std::string profile_bars(const RunRecord& run) {
  constexpr std::size_t kMost = 12;
  const io::Json& p = *run.profile;
  const auto number = [](const io::Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_number() ? object[key].get<double>() : 0.0;
  };
  const double step = number(p, "step_ms");
  std::vector<Share> shares;
  double rest = 0;
  for (const io::Json& kind : p["kinds"]) {
    if (!kind.is_object() || !kind.contains("name") || !kind["name"].is_string()) continue;
    const double ms = number(kind, "ms"), share = std::clamp(number(kind, "share"), 0.0, 1.0);
    if (shares.size() >= kMost) {
      rest += ms;
      continue;
    }
    shares.push_back(
        {kind["name"].get<std::string>(), fmt::format("{}, {}", percent(share), duration(ms * 1e-3)), share, 2,
         fmt::format("{} ms; {} of what the roofline allows", plain(ms, 3), percent(number(kind, "roofline")))});
  }
  const auto add = [&](const char* name, double ms, std::size_t colour) {
    if (ms > 0 && step > 0)
      shares.push_back({name, fmt::format("{}, {}", percent(ms / step), duration(ms * 1e-3)), ms / step, colour, ""});
  };
  add("other ops", rest, 2);
  add("waiting for data", number(p, "data_ms"), 0);
  add("outside of nodes", number(p, "outside_ms"), 4);
  const std::string device = p.contains("device") && p["device"].is_string() ? p["device"].get<std::string>() : "?";
  return card(fmt::format("Where the step's time goes: {}, {} a step on {}", run.name, duration(step * 1e-3), device),
              true, "<div class=\"scroll\">" + draw_shares("share of the step by op", shares, kPageWidth) + "</div>\n");
}

}  // namespace redline::report
