// Advice for a run that does not fit: which settings would. Whatever is advised is a configuration that a run accepts,
// and it was lowered: it needs no more than there is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "device/device.h"
#include "dist/sharing.h"

namespace redline::train {

// Bytes that the arena of a rank takes, by lowering it: nothing is allocated.
std::int64_t memory_needed(const config::Config& config, device::Kind kind, const dist::Sharing& sharing = {});

// Bytes that it may take on the device: what is free there, or memory.limit.
std::int64_t memory_allowed(const config::Config& config, const device::Device& device);

// Configurations that need less memory, the mildest change first: coarser moments, then rows half as long and so on,
// with each kind of moments. A step keeps its tokens. Recompute and the rows of a micro-batch are as they were: whoever
// asks looks at those first, since they do not change what a run learns.
std::vector<config::Config> relaxations(const config::Config& config);

// "24.00 GiB", or "5.72 MiB" of what is small.
std::string memory_in_words(std::int64_t bytes);

// What is made again in the backward pass, with its verb: "nothing is", "the first 3 layers are".
std::string what_is_recomputed(const config::Config& config);

// The settings that `to` has otherwise than `from`, as the command line takes them ("train.recompute=mlp"), and as a
// sentence has them (`train.recompute = "mlp", train.seq_len = 512`).
std::vector<std::string> changed_keys(const config::Config& from, const config::Config& to);
std::string changes_in_words(const config::Config& from, const config::Config& to);

// The settings that fit into `available` bytes of the rank, as a clause: "train.recompute = \"mlp\" (61.20 GiB) or
// train.batch_size = 24, train.accumulate = 2 (58.11 GiB) would fit".
std::string what_would_fit(const config::Config& config, device::Kind kind, std::int64_t available,
                           const dist::Sharing& sharing = {});

// Why a run whose arena takes `needed` bytes does not fit on the device now, and what would; empty: it does.
std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device,
                           const dist::Sharing& sharing = {});
// The same as a UserError.
void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device,
                    const dist::Sharing& sharing = {});

}  // namespace redline::train
