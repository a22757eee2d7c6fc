// precision.fp8 = "auto": which products of linears take operands in eight bits on a card. A product in eight bits is
// timed, and what its casts move is counted; it is taken where both together are faster than bf16.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/fp8_linears.h"
#include "perf/roofline.h"

namespace redline::perf {

// A node that is a product, by itself.
struct NodeSeconds {
  double seconds = 0;
  std::string problem = {};  // why it cannot be computed
};
// Of nodes of a lowered set, in their order; untimed only the problems.
using TimeNodes = std::function<std::vector<NodeSeconds>(const program::ProgramSet& set,
                                                         std::span<const program::Node* const> nodes, bool timed)>;
// On a card, by the plans that a run will launch. Without CUDA, perf/no_cuda.cpp.
TimeNodes time_on_card(device::Device& device);

struct Fp8Choice {
  config::Config config;  // with the list in its place
  model::Fp8Reasons reasons = {};
};

// What a configuration comes to on a device, before its first step. A list that is there already stays, but for what
// the card cannot do; on the CPU and where bits are to repeat nothing is timed, and all that can be is taken. Without
// `measure` (a dry run) nothing is asked of the card.
Fp8Choice settle_fp8(const config::Config& config, device::Device& device, bool measure);

// The parts of it: all of `products` that can be computed; and of the configuration's own those that are worth it.
Fp8Choice take_possible(const config::Config& config, const std::vector<std::string>& products, const TimeNodes& time);
Fp8Choice take_faster(const config::Config& config, const Machine& machine, const TimeNodes& time);

// A run that goes on keeps the list that it began with, unless the command line says something else about it.
config::Config adopt_fp8_products(const config::Config& config, const config::Config& run);

}  // namespace redline::perf
