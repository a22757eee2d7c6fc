// The parts of redline doctor that tests look into: the mean step and the machine of a run's record, for which no card
// is needed, and a diagnosis for people and for programs.
#pragma once

#include <string>

#include "io/json_fwd.h"
#include "perf/doctor.h"
#include "report/run_record.h"

namespace redline::cli {

// Means over the steady steps of the run. A run without any is a UserError.
perf::Observed observed_in(const report::RunRecord& run, const config::Config& config);

// The machine of the run's last session. A run that did not record it is a UserError.
perf::Machine machine_of(const report::RunRecord& run);

inline constexpr std::size_t kShownFindings = 3;

struct Consultation {
  std::string name, device;  // of the run or the configuration; of the machine
  std::string basis;         // where the figures come from: "as the run recorded it, 197 steps"
  bool run = false;          // else a configuration
  perf::Diagnosis diagnosis;
};

std::string in_words(const Consultation& c, bool blocks);
io::Json to_json(const Consultation& c);
std::string doctor_page(const Consultation& c);

}  // namespace redline::cli
