// The plots of runs: curves of several runs over steps, tokens or time, step times, memory, a profile. Each is a piece of
// HTML; report/run_page.cpp puts them together.
#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"
#include "report/run_summary.h"

namespace redline::report {

using Runs = std::vector<RunRecord>;

// The page's colour of a run, by its place.
std::size_t run_colour(std::size_t run);

// How a value is written at a tick and on hover; the page's script knows them by these names.
enum class Figure { number, share, rate, milliseconds, exponent };

struct Panel {
  std::string title;
  Column column = Column::loss;
  Figure figure = Figure::number;
  bool smooth = false;       // a mean over it, the values behind
  bool from_zero = false;    // the y axis
  bool wide = false;         // the width of the page
  bool evaluations = false;  // with the held-out loss as dots
  bool marks = false;        // with resumes
};
// Empty where no run has a value.
std::string curves(const Runs& runs, const Panel& panel);

std::string step_times(const Runs& runs);
std::string memory_bars(const Runs& runs);
std::string profile_bars(const RunRecord& run);  // the run has a profile

}  // namespace redline::report
