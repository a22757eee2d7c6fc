// A training step divided into parts, each with its time and its floor, the least time the machine could take for it.
// Times come from the plan, or from timed nodes.
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

// The part that a node belongs to, by the name of its op.
StepPart part_of(std::string_view op);

struct PartTime {
  double ms = 0;
  double floor_ms = 0;  // the longer of products at the peak and bytes at the copy rate; 0: no step needs it
  double loss_ms() const { return ms > floor_ms ? ms - floor_ms : 0; }
};

struct StepParts {
  std::array<PartTime, kStepParts.size()> of{};
  PartTime& operator[](StepPart part) { return of[static_cast<std::size_t>(part)]; }
  const PartTime& operator[](StepPart part) const { return of[static_cast<std::size_t>(part)]; }
  double ms() const;
};

// The plan's times of a step, in ms over all of its micro-batches.
struct PlannedStep {
  StepParts parts;             // products to launches; the latter between the nodes of a graph
  double recompute_ms = 0;     // in nodes that compute something again
  double mlp_ms = 0;           // in the products of the MLP
  double node_by_node_ms = 0;  // more, where every node is launched by itself
  double evaluation_ms = 0;    // of one batch that is evaluated
};
PlannedStep planned_step(const config::Config& config, const Machine& machine);

// A node that was timed.
struct TimedNode {
  std::string_view op, phase;
  double ms = 0, floor_ms = 0;
};
void add_timed(StepParts& parts, const TimedNode& node);
StepParts parts_of(const Profile& profile);

}  // namespace redline::perf
