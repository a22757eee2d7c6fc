// Runs as one HTML file that needs nothing else: curves, speed, memory, what happened, what was set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/run_charts.h"
#include "report/run_record.h"
#include "report/run_summary.h"

namespace redline::report {

// `unreadable` are sentences about runs that were asked for and are not there.
std::string run_page(const Runs& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable);

// What the page adds to the style of all pages, and the script that shows values under the pointer.
extern const std::string_view kRunPageStyle, kRunPageScript;

}  // namespace redline::report
