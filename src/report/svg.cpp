// Where things stand in a plot, in the units of its view box; text is laid out by an estimate of its width.
#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.h"

namespace redline::report {
namespace {

constexpr double kLetter = 6.6;  // width of one at the style's 12 units, in the mean
constexpr double kLine = 15;     // height of a line of text

double width_of(const std::string& text) { return kLetter * static_cast<double>(text.size()); }

std::string written(const Axis& axis, double value) {
  return axis.written ? axis.written(value) : fmt::format("{:.6g}", value);
}

std::string title_of(const std::string& title) { return title.empty() ? "" : "<title>" + escaped(title) + "</title>"; }

std::string label(double x, double y, const char* anchor, const std::string& kind, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, kind,
                     escaped(words));
}

std::string opening(double width, double height, const std::string& title, const std::string& attributes = "") {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\"{}>\n", width, height,
                     escaped(title), attributes);
}

std::string rectangle(const std::string& kind, double x, double y, double width, double height,
                      const std::string& title = "") {
  return fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">{}</rect>\n",
                     kind, x, y, width, height, title_of(title));
}

// From values to places.
class Scale {
 public:
  Scale(const Axis& axis, double begin, double end)
      : logarithmic_(axis.logarithmic), low_(bent(axis.low)), high_(bent(axis.high)), begin_(begin), end_(end) {}
  double operator()(double value) const {
    const double share = high_ > low_ ? (bent(value) - low_) / (high_ - low_) : 0.5;
    return begin_ + std::clamp(share, 0.0, 1.0) * (end_ - begin_);
  }

 private:
  double bent(double value) const { return logarithmic_ ? std::log2(std::max(value, 1e-300)) : value; }

  bool logarithmic_;
  double low_, high_, begin_, end_;
};

struct Frame {
  double left, right, top, bottom;
};

int y_ticks(const Frame& f) { return std::max(3, static_cast<int>((f.bottom - f.top) / 38)); }

std::string draw_axes(const Chart& chart, const Frame& f, const Scale& x, const Scale& y) {
  std::string out;
  for (const double tick : ticks(chart.y, y_ticks(f))) {
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", f.left,
                       f.right, y(tick), y(tick));
    out += label(f.left - 8, y(tick) + 4, "end", "tick", written(chart.y, tick));
  }
  for (const double tick : ticks(chart.x, 8)) {
    out += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x(tick),
                       f.bottom, f.bottom + 5);
    out += label(x(tick), f.bottom + 19, "middle", "tick", written(chart.x, tick));
  }
  out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", f.left,
                     f.right, f.bottom, f.bottom);
  out += label((f.left + f.right) / 2, f.bottom + 38, "middle", "name", chart.x.label);
  out += label(0, 12, "start", "name", chart.y.label);
  return out;
}

std::string draw_bars(const Chart& chart, const Scale& x, const Scale& y) {
  std::string out;
  const double base = y(chart.y.low), series = static_cast<double>(chart.bars.size());
  for (std::size_t s = 0; s < chart.bars.size(); ++s) {
    for (const Bar& bar : chart.bars[s].bars) {
      const double left = x(bar.from), each = std::max(0.5, x(bar.to) - left - 1.5) / series;
      const double top = y(bar.value);
      out += fmt::format("<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\">{}</rect>\n",
                         chart.bars[s].colour % kColours, left + 0.75 + each * static_cast<double>(s), top, each,
                         base - top, title_of(bar.title));
    }
  }
  return out;
}

// Names at the right ends, pushed apart where they would stand on each other.
std::string name_lines(const Chart& chart, const Frame& f, const Scale& y) {
  struct Name {
    double at;
    const LineSeries* line;
  };
  std::vector<Name> names;
  for (const LineSeries& line : chart.lines)
    if (!line.points.empty() && !line.name.empty()) names.push_back({y(line.points.back().y) + 4, &line});
  std::ranges::sort(names, {}, &Name::at);
  for (std::size_t i = 1; i < names.size(); ++i) names[i].at = std::max(names[i].at, names[i - 1].at + kLine);
  double most = f.bottom;
  for (std::size_t i = names.size(); i-- > 0; most -= kLine) names[i].at = std::min(names[i].at, most);
  std::string out;
  for (const Name& name : names)
    out +=
        label(f.right + 10, name.at, "start", fmt::format("name t{}", name.line->colour % kColours), name.line->name);
  return out;
}

std::string draw_lines(const Chart& chart, const Frame& f, const Scale& x, const Scale& y) {
  std::string out;
  for (const LineSeries& line : chart.lines) {
    const std::size_t colour = line.colour % kColours;
    std::string points;
    const auto end_line = [&] {
      if (!points.empty())
        out += fmt::format("<polyline class=\"l{}{}{}\" points=\"{}\"/>\n", colour, line.dashed ? " dashed" : "",
                           line.faint ? " faint" : "", points);
      points.clear();
    };
    for (const Point& p : line.points) {
      if (std::isnan(p.y))
        end_line();
      else
        points += fmt::format("{:.1f},{:.1f} ", x(p.x), y(p.y));
    }
    end_line();
    for (const Point& p : line.points)
      if (line.dots && !std::isnan(p.y))
        out +=
            fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", colour, x(p.x), y(p.y));
    for (const Point& p : line.points)
      if (!p.title.empty())
        out += fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\">{}</circle>\n", colour, x(p.x),
                           y(p.y), title_of(p.title));
  }
  return out + name_lines(chart, f, y);
}

// A label that would stand on a neighbour, or on its label, shows on hover alone.
std::string draw_marks(const Chart& chart, const Frame& f, const Scale& x) {
  std::vector<Mark> marks = chart.marks;
  std::ranges::stable_sort(marks, {}, &Mark::x);
  std::string out;
  double taken_to = f.left;  // by the mark before and its label
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const double at = x(marks[i].x), next = i + 1 < marks.size() ? x(marks[i + 1].x) : f.right + 1;
    const double wide = 6 + width_of(marks[i].label);
    out += fmt::format("<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\">{3}</line>\n",
                       at, f.top, f.bottom, title_of(marks[i].label));
    const bool left = at + wide > f.right, free = left ? at - wide >= taken_to : at + wide < next;
    if (free) out += label(left ? at - 6 : at + 6, f.top + 10, left ? "end" : "start", "name", marks[i].label);
    taken_to = free && !left ? at + wide : at;
  }
  return out;
}

std::string draw_legend(const Chart& chart, const Frame& f) {
  std::string out;
  if (chart.bars.size() < 2) return out;
  double right = f.right;
  for (std::size_t s = chart.bars.size(); s-- > 0;) {
    const BarSeries& series = chart.bars[s];
    right -= width_of(series.name);
    out += label(right, 12, "start", "name", series.name);
    right -= 16;
    out += fmt::format("<rect class=\"c{}\" x=\"{:.1f}\" y=\"2\" width=\"11\" height=\"11\"/>\n",
                       series.colour % kColours, right);
    right -= 18;
  }
  return out;
}

}  // namespace

std::vector<double> ticks(const Axis& axis, int wanted) {
  std::vector<double> out;
  if (!(axis.high > axis.low) || !std::isfinite(axis.high - axis.low)) return {axis.low};
  if (axis.logarithmic) {
    const double first = std::ceil(std::log2(axis.low) - 1e-9), last = std::floor(std::log2(axis.high) + 1e-9);
    const double step = std::max(1.0, std::ceil((last - first + 1) / wanted));
    for (double e = first; e <= last; e += step) out.push_back(std::exp2(e));
    return out;
  }
  const double rough = (axis.high - axis.low) / wanted, ten = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * ten;
  for (const double round : {5.0, 2.0, 1.0})
    if (round * ten >= rough * 0.999) step = round * ten;
  for (double n = std::ceil(axis.low / step - 1e-9); n * step <= axis.high + step * 1e-9; n += 1)
    out.push_back(n * step + 0.0);  // + 0.0: a zero without a sign
  return out;
}

std::string draw(const Chart& chart) {
  double ends = 10, tick_width = 0;
  for (const LineSeries& line : chart.lines) ends = std::max(ends, width_of(line.name) + 12);
  for (const double tick : ticks(chart.x, 8)) ends = std::max(ends, width_of(written(chart.x, tick)) / 2 + 2);
  const bool words_above = !chart.y.label.empty() || chart.bars.size() > 1 || !chart.marks.empty();
  Frame f{0, chart.width - ends, words_above ? 26.0 : 10.0, chart.height - 46};
  for (const double tick : ticks(chart.y, y_ticks(f)))
    tick_width = std::max(tick_width, width_of(written(chart.y, tick)));
  f.left = tick_width + 14;
  const Scale x(chart.x, f.left, f.right), y(chart.y, f.bottom, f.top);
  const std::string places = chart.kind.empty()
                                 ? ""
                                 : fmt::format(
                                       " class=\"plot\" data-kind=\"{}\" data-frame=\"{:.1f} {:.1f} {:.1f} {:.1f}\" "
                                       "data-range=\"{} {} {} {}\" data-log=\"{:d}\"",
                                       chart.kind, f.left, f.right, f.top, f.bottom, chart.x.low, chart.x.high,
                                       chart.y.low, chart.y.high, chart.y.logarithmic);
  return opening(chart.width, chart.height, chart.title, places) + draw_axes(chart, f, x, y) + draw_bars(chart, x, y) +
         draw_marks(chart, f, x) + draw_lines(chart, f, x, y) + draw_legend(chart, f) + "</svg>\n";
}

std::string draw_shares(const std::string& title, const std::vector<Share>& shares, double width) {
  constexpr double kRow = 30, kBar = 18;
  double names = 0, figures = 0;
  for (const Share& s : shares) {
    names = std::max(names, width_of(s.name) + 12);
    figures = std::max(figures, width_of(s.written) + 12);
  }
  const double whole = width - names - figures;
  std::string out = opening(width, kRow * static_cast<double>(shares.size()), title);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Share& s = shares[i];
    const double top = kRow * static_cast<double>(i) + (kRow - kBar) / 2, middle = top + kBar / 2 + 4;
    out += label(0, middle, "start", "name", s.name);
    out += fmt::format("<g>{}<rect class=\"rest\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>",
                       title_of(s.title), names, top, whole, kBar);
    out += fmt::format("<rect class=\"c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/></g>\n",
                       s.colour % kColours, names, top, whole * std::clamp(s.value, 0.0, 1.0), kBar);
    out += label(width, middle, "end", "name", s.written);
  }
  return out + "</svg>\n";
}

std::string draw_stacks(const std::string& title, const std::vector<Stack>& stacks, double width) {
  constexpr double kRow = 34, kBar = 22, kChip = 11;
  std::vector<const Part*> kinds;  // each name once, in the order of the parts
  double names = 0, figures = 0, most = 0;
  for (const Stack& s : stacks) {
    double sum = 0;
    for (const Part& part : s.parts) {
      sum += part.value;
      if (std::ranges::none_of(kinds, [&](const Part* k) { return k->name == part.name; })) kinds.push_back(&part);
    }
    most = std::max({most, sum, s.whole});
    names = std::max(names, s.name.empty() ? 0 : width_of(s.name) + 12);
    figures = std::max(figures, width_of(s.written) + 12);
  }
  std::string legend;
  double x = 0, y = 0;
  for (const Part* kind : kinds) {
    const double wide = kChip + 6 + width_of(kind->name) + 20;
    if (x > 0 && x + wide > width) x = 0, y += kLine + 6;
    legend += rectangle(fmt::format("c{}", kind->colour % kColours), x, y + 2, kChip, kChip);
    legend += label(x + kChip + 6, y + 12, "start", "name", kind->name);
    x += wide;
  }
  const double top = y + kLine + 12, scale = most > 0 ? (width - names - figures) / most : 0;
  std::string out = opening(width, top + kRow * static_cast<double>(stacks.size()), title) + legend;
  for (std::size_t i = 0; i < stacks.size(); ++i) {
    const Stack& s = stacks[i];
    const double row = top + kRow * static_cast<double>(i) + (kRow - kBar) / 2, middle = row + kBar / 2 + 4;
    if (!s.name.empty()) out += label(0, middle, "start", "name", s.name);
    if (s.whole > 0) out += rectangle("rest", names, row, s.whole * scale, kBar);
    double at = names;
    for (const Part& part : s.parts) {
      const double wide = part.value * scale;
      out += rectangle(fmt::format("c{}", part.colour % kColours), at, row, std::max(wide - 1, std::min(wide, 0.5)),
                       kBar, part.title);
      at += wide;
    }
    out += label(width, middle, "end", "name", s.written);
  }
  return out + "</svg>\n";
}

}  // namespace redline::report
