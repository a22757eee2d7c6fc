// Advice for a run that does not fit: which batch size or recompute would.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "device/device.h"

namespace redline::train {

// Bytes that the run's arena takes, by lowering it: nothing is allocated.
std::int64_t memory_needed(const config::Config& config, device::Kind kind);

// The settings that fit into `available` bytes, as a clause: "train.recompute = \"mlp\" (61.20 GiB) or
// train.batch_size = 24 with train.accumulate = 2 (58.11 GiB) would fit".
std::string what_would_fit(const config::Config& config, device::Kind kind, std::int64_t available);

// Why a run whose arena takes `needed` bytes does not fit on the device now, and what would; empty: it does.
std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device);
// The same as a UserError.
void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device);

}  // namespace redline::train
