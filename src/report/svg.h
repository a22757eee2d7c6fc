// Plots as SVG text: bars and lines over two axes, shares and stacks as horizontal bars. Values show on hover by <title>;
// colours come from the page's style (report/html.h), so light, dark and paper are one drawing. No script: what one needs to
// find values in a plot stands in its attributes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace redline::report {

struct Axis {
  std::string label;
  double low = 0, high = 1;
  bool logarithmic = false;                    // base 2; low must be positive
  std::function<std::string(double)> written;  // of a tick; empty: as short as it goes
};

// Where an axis has marks: round numbers (1, 2, 5 and their tens; powers of two) inside [low, high], about `wanted` of them.
std::vector<double> ticks(const Axis& axis, int wanted);

// One of the page's colours, kColours of them.
inline constexpr std::size_t kColours = 8;

struct Bar {
  double from = 0, to = 0, value = 0;
  std::string title;  // on hover
};
struct BarSeries {
  std::string name;
  std::size_t colour = 0;
  std::vector<Bar> bars;  // several series share the width of a bar
};

struct Point {
  double x = 0, y = 0;
  std::string title;
};
struct LineSeries {
  std::string name;  // written at its right end
  std::size_t colour = 0;
  std::vector<Point> points;  // a y that is NaN is a gap
  bool dashed = false;        // lets a line that it covers be seen
  bool faint = false;         // what another line is the mean of
  bool dots = false;          // a mark at each point
};

// A dashed line across the plot, at an x.
struct Mark {
  double x = 0;
  std::string label;
};

struct Chart {
  std::string title;  // for those who cannot see it
  Axis x, y;
  std::vector<BarSeries> bars;
  std::vector<LineSeries> lines;
  std::vector<Mark> marks;
  double width = 760, height = 300;
  std::string kind;  // of the x axis, for a script
};
std::string draw(const Chart& chart);

// A part of a whole: a bar that is filled so far.
struct Share {
  std::string name, written;
  double value = 0;  // 0 to 1
  std::size_t colour = 0;
  std::string title;
};
std::string draw_shares(const std::string& title, const std::vector<Share>& shares, double width = 760);

// Bars of parts, one after the other, to one scale. Parts of one name have one colour, and a legend says which.
struct Part {
  std::string name;
  double value = 0;
  std::size_t colour = 0;
  std::string title;
};
struct Stack {
  std::string name, written;
  std::vector<Part> parts;
  double whole = 0;  // what there is room for, drawn behind; 0: nothing is
};
std::string draw_stacks(const std::string& title, const std::vector<Stack>& stacks, double width = 760);

}  // namespace redline::report
