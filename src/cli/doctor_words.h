// A diagnosis for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "io/json_fwd.h"
#include "perf/doctor.h"

namespace redline::cli {

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
