// Reads a run's record for redline doctor: its mean step, and the machine that made it. No card is needed.
#pragma once

#include "perf/doctor.h"
#include "report/run_record.h"

namespace redline::cli {

// Means over the steady steps of the run. A run without any is a UserError.
perf::Observed observed_in(const report::RunRecord& run, const config::Config& config);

// The machine of the run's last session. A run that did not record it is a UserError.
perf::Machine machine_of(const report::RunRecord& run);

}  // namespace redline::cli
