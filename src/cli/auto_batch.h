// The search of train.batch_size = "auto" with its progress line, and its result as a sentence.
#pragma once

#include <atomic>
#include <string>

#include "config/config.h"
#include "device/device.h"
#include "perf/plan.h"

namespace redline::cli {

// "32 rows x 3 with recompute mlp".
std::string in_words(const perf::Setting& setting);

// Puts numbers in place of "auto" and returns a sentence that tells which and why. Where the configuration has a number
// already, nothing changes and the sentence is empty. Without `measure` the plan alone decides.
std::string resolve_batch_size(config::Config& config, device::Device& device, bool measure,
                               const std::atomic<int>* stop = nullptr);

}  // namespace redline::cli
