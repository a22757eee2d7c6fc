// The choice of precision.fp8 = "auto": which products of linears take operands in eight bits on a card. Each
// product is timed in eight bits, the bytes of its casts are counted, and it is taken where both together are faster
// than bf16. A plan has no card to time on, and chooses in the same way by what the machine is expected to need.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/fp8_linears.h"
#include "perf/roofline.h"

namespace redline::perf {

// One product, timed by itself.
struct NodeSeconds {
  double seconds = 0;
  std::string problem = {};  // why it cannot be computed
};
// Times nodes of a lowered set, in their order. Without `timed` it fills in the problems only.
using TimeNodes = std::function<std::vector<NodeSeconds>(const program::ProgramSet& set,
                                                         std::span<const program::Node* const> nodes, bool timed)>;
// Times on a card, with the algorithms that a run will launch. Without CUDA, perf/no_cuda.cpp stands in.
TimeNodes time_on_card(device::Device& device);

struct Fp8Choice {
  config::Config config;  // with the list in its place
  model::Fp8Reasons reasons = {};
};

// Settles the list of products before the first step. A list that is there already stays, less the products that the
// card cannot compute. On the CPU, and where bits must repeat, nothing is timed and every possible product is taken.
// Without `measure` (a dry run) the card is not asked.
Fp8Choice settle_fp8(const config::Config& config, device::Device& device, bool measure);

// The parts of settle_fp8: take_possible keeps the products that can be computed, take_faster those that are worth it.
// Products of experts, and without `time` all others, take what the machine is expected to need.
Fp8Choice take_possible(const config::Config& config, const std::vector<std::string>& products, const TimeNodes& time);
Fp8Choice take_faster(const config::Config& config, const Machine& machine, const TimeNodes& time = {});

// The list that a run on such a machine comes to, for plans.
Fp8Choice expect_fp8(const config::Config& config, const Machine& machine);

// A resumed run keeps the list it began with, unless the command line gives another.
config::Config adopt_fp8_products(const config::Config& config, const config::Config& run);

}  // namespace redline::perf
