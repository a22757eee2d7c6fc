// A run's record as redline doctor looks at it: the step that it made, and the machine that made it. No card is needed.
#pragma once

#include "perf/doctor.h"
#include "report/run_record.h"

namespace redline::cli {

// Means over the steps whose speed is the run's own. A run that has made none is a UserError.
perf::Observed observed_in(const report::RunRecord& run, const config::Config& config);

// The machine of the run's last session. A run that did not say is a UserError.
perf::Machine machine_of(const report::RunRecord& run);

}  // namespace redline::cli
