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

// The plots of a section, from the table of metrics. A plot for which no run has a value is left out.
std::string curves(const Runs& runs, Section section);

std::string memory_bars(const Runs& runs);
std::string profile_bars(const RunRecord& run);  // the run has a profile

}  // namespace redline::report
