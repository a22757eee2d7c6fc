// The HTML page of one or several runs, one file with all its data: curves, speed, memory, events, settings.
#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"
#include "report/run_summary.h"

namespace redline::report {

using Runs = std::vector<RunRecord>;

// `unreadable` has a sentence for each run that was asked for and could not be read.
std::string run_page(const Runs& runs, const std::vector<RunSummary>& summaries,
                     const std::vector<std::string>& unreadable);

}  // namespace redline::report
