// The interface of an optimizer to lowering: its state from step to step, and the nodes of its update. One file an
// optimizer.
#pragma once

#include <functional>

#include "base/shards.h"
#include "config/config.h"
#include "model/parameters.h"
#include "optim/state.h"

namespace redline::program {
class Builder;
}

namespace redline::model {

struct LoweredModel;

struct Optimizer {
  // The state for the parameters that this rank updates.
  optim::StateTable (*state)(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                             const config::Optim& settings);
  // Appends its nodes after the norm of the gradients, for the parameters of m.updated.
  void (*update)(program::Builder& b, const LoweredModel& m, const config::Optim& settings);
  // Stretches of the flat layout that one rank must update whole. Null: a rank may have any element.
  std::vector<Range> (*whole)(const ParameterTable& table, const FlatLayout& layout) = nullptr;
};

extern const Optimizer kAdamW, kMuon, kNorMuon;

// AdamW's part of an optimizer that leaves it the parameters for which `holds` is true.
using Holds = std::function<bool(const ParameterSpec&)>;
optim::StateTable adamw_state_where(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                                    const config::Optim& settings, const Holds& holds);
void adamw_where(program::Builder& b, const LoweredModel& m, const config::Optim& settings, const Holds& holds);

}  // namespace redline::model
