// train.batch_size = "auto" as commands meet it: the search with its progress line, and what was chosen as a sentence.
#pragma once

#include <atomic>
#include <string>

#include "config/config.h"
#include "device/device.h"

namespace redline::cli {

// Puts numbers in place of "auto" and returns the sentence that says which and why; nothing and an empty one where
// the configuration has a number already. Without `measure` the plan alone decides.
std::string resolve_batch_size(config::Config& config, device::Device& device, bool measure,
                               const std::atomic<int>* stop = nullptr);

}  // namespace redline::cli
