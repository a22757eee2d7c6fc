// WhatRuns describes the work that a configuration gives a kind of device, as texts. Comparing two of them tells
// whether a setting changes anything there. No device is needed.
#pragma once

#include <string>

#include "config/config.h"
#include "device/device.h"

namespace redline::perf {

struct WhatRuns {
  std::string program;    // a hash of every node of a step: its operands' types, shapes and places, how it computes
  std::string execution;  // how programs are given to the device
  std::string products;   // how the algorithms of products are found
  std::string batches;    // how documents fill batches
  bool operator==(const WhatRuns&) const = default;
};

WhatRuns what_runs(const config::Config& config, device::Kind kind);

}  // namespace redline::perf
