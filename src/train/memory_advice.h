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

// Bytes that the arena takes, by lowering it: nothing is allocated. On several ranks, whichever of them is given, it is
// the largest of their arenas.
std::int64_t memory_needed(const config::Config& config, device::Kind kind, const dist::Sharing& sharing = {});

// Bytes that it may take on the device: what is free there, or memory.limit.
std::int64_t memory_allowed(const config::Config& config, const device::Device& device);

// Configurations that need less memory, the mildest change first: coarser moments, then rows half as long and so on,
// with each kind of moments. A step keeps its tokens. Recompute and the rows of a micro-batch are as they were: whoever
// asks looks at those first, since they do not change what a run learns.
std::vector<config::Config> relaxations(const config::Config& config);

// The same run with fewer bytes: coarser moments, then gradients and weights in bf16, as far as it takes them, and last
// all that it takes at once, where that is more than one of them.
std::vector<config::Config> coarser_types(const config::Config& config, device::Kind kind,
                                          const dist::Sharing& sharing = {});

// Both: coarser types of the run as it is first, then what is relaxed, and the most relaxed one with all types last.
std::vector<config::Config> relaxations_with_types(const config::Config& config, device::Kind kind,
                                                   const dist::Sharing& sharing = {});

// What memory.fit may put into the host's memory, from nothing to all of it. Products read working copies where there
// are any, else the masters themselves. Gradients and what products read move once a micro-batch or twice, and all else
// once a step: they go last.
std::vector<config::Placement> placements(const config::Config& config, device::Kind kind,
                                          const dist::Sharing& sharing);
// Those of them of which one leaves least on the device: all of it, and the same but for the weights, since two layers
// of them on their way may be more than a rank has of all.
std::vector<config::Placement> leanest(const config::Config& config, device::Kind kind, const dist::Sharing& sharing);

// "24.00 GiB", or "5.72 MiB" of what is small; and rounded up, for somebody who takes it as an amount.
std::string memory_in_words(std::int64_t bytes);
std::string enough_in_words(std::int64_t bytes);

// "with 121.40 GiB of the host's memory it would fit (memory.host_limit is 64GiB)"; `way` stands in place of "it".
std::string more_host_in_words(const config::Config& config, const std::string& way, std::int64_t needs,
                               std::int64_t has);

// What is made again in the backward pass, with its verb: "nothing is", "the first 3 layers are".
std::string what_is_recomputed(const config::Config& config);

// The settings that `to` has otherwise than `from`, as the command line takes them ("train.recompute=mlp"), and as a
// sentence has them (`train.recompute = "mlp", train.seq_len = 512`).
std::vector<std::string> changed_keys(const config::Config& from, const config::Config& to);
std::string changes_in_words(const config::Config& from, const config::Config& to);

// The settings that fit into `available` bytes of the rank, as a clause: "train.recompute = \"mlp\" (61.20 GiB) or
// train.batch_size = 24, train.accumulate = 2 (58.11 GiB) would fit". Ranks on one machine share what is free of the
// host's memory.
std::string what_would_fit(const config::Config& config, device::Kind kind, std::int64_t available,
                           const dist::Sharing& sharing = {}, int ranks_here = 1);

// Why a run whose arena takes `needed` bytes does not fit on the device now, and what would; empty: it does.
std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device,
                           const dist::Sharing& sharing = {}, int ranks_here = 1);
// The same as a UserError.
void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device,
                    const dist::Sharing& sharing = {}, int ranks_here = 1);

}  // namespace redline::train
