// Runs as one HTML file that needs nothing else: curves, speed, memory, what happened, what was set.
#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"
#include "report/run_summary.h"

namespace redline::report {

using Runs = std::vector<RunRecord>;

// `unreadable` are sentences about runs that were asked for and are not there.
std::string run_page(const Runs& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable);

}  // namespace redline::report
