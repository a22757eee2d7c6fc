// Norms of gradient, weight and update of every parameter of the table (log.norms_every), and the norm of the first
// micro-batch's gradient, from which the noise scale follows. Lowering writes the nodes, the engine reads their
// results.
#pragma once

#include <string>
#include <vector>

#include "base/step_state.h"
#include "model/lowering.h"

namespace redline::model {

// The sums that one look brought to the host. Gradients are sums over pairs, as programs have them.
struct NormSums {
  std::vector<double> gradients, weights;  // sums of squares, by row of the parameter table
  std::vector<double> updates;             // the same; empty where a copy of the old weights had no room
  UpdateResult small = {};                 // norm and pairs of the first micro-batch; no pairs: not taken
};

// One tensor.
struct TensorNorm {
  std::string name;  // "layer 3/qkv"
  double gradient = 0, weight = 0;
  double update = 0;  // NaN: not known
};
std::vector<TensorNorm> tensor_norms(const ParameterTable& table, const NormSums& sums, double pairs);

// Declares the values that hold the sums.
void declare_norms(program::Builder& b, LoweredModel& m);
// The place of each tensor in this rank's part, as TensorSums::bounds has it.
std::vector<std::int64_t> tensor_bounds(const LoweredModel& m);

// Appends the nodes before an update. Their result goes to the nodes behind it. `updates`: with a copy of the weights.
program::ValueId norms_before_update(program::Builder& b, const LoweredModel& m, bool updates);
void norms_behind_update(program::Builder& b, const LoweredModel& m, program::ValueId before);

}  // namespace redline::model
