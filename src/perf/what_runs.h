// What a configuration makes a kind of device do, as texts that can be compared: whether a setting changes anything
// there is asked of these, without a device.
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
