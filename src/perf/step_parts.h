// A training step divided into the parts that people ask about, each with its time and its floor: the least that the
// machine could take for it. By the plan, or by nodes that were timed.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "config/config.h"
#include "perf/profile.h"
#include "perf/roofline.h"

namespace redline::perf {

enum class StepPart {
  products,
  attention,
  memory_bound,
  head,
  update,
  communication,
  launches,
  data,
  evaluation,
  sampling,
  saving,
};
inline constexpr std::array<std::string_view, 11> kStepParts = {"products",   "attention",     "memory-bound", "head",
                                                                "update",     "communication", "launches",     "data",
                                                                "evaluation", "sampling",      "saving"};

// Of a node, by the name of its op.
StepPart part_of(std::string_view op);

struct PartTime {
  double ms = 0;
  double floor_ms = 0;  // products at the peak, bytes at the copy rate, whichever is longer; 0 for what no step needs
  double loss_ms() const { return ms > floor_ms ? ms - floor_ms : 0; }
};

struct StepParts {
  std::array<PartTime, kStepParts.size()> of{};
  PartTime& operator[](StepPart part) { return of[static_cast<std::size_t>(part)]; }
  const PartTime& operator[](StepPart part) const { return of[static_cast<std::size_t>(part)]; }
  double ms() const;
};

// What the plan knows of a step's nodes; times in ms of the whole step, all of its micro-batches together.
struct PlannedStep {
  StepParts parts;             // products to launches; the latter between the nodes of a graph
  double recompute_ms = 0;     // in nodes that compute something again
  double mlp_ms = 0;           // in the products of the MLP
  double node_by_node_ms = 0;  // more, where every node is launched by itself
  double evaluation_ms = 0;    // of one batch that is evaluated
};
PlannedStep planned_step(const config::Config& config, const Machine& machine);

// Of nodes that were timed: name of the op, phase, ms and floor of each.
struct TimedNode {
  std::string_view op, phase;
  double ms = 0, floor_ms = 0;
};
void add_timed(StepParts& parts, const TimedNode& node);
StepParts parts_of(const Profile& profile);

}  // namespace redline::perf
