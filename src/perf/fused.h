// The savings of fused kernels that have no slow twin here: the bytes that separate kernels would move in addition.
// They are counted on the lowered program.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "device/device.h"

namespace redline::perf {

struct Fused {
  std::string name;   // "fused AdamW"
  std::string about;  // the bytes that separate kernels would move
  double bytes = 0;   // of a step
};

std::vector<Fused> fused_savings(const config::Config& config, device::Kind kind);

}  // namespace redline::perf
