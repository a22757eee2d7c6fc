// Norms of gradient, weight and update of every parameter of the table (log.norms_every), and the gradient of the first
// micro-batch beside that of the step, from which its noise is told. Lowering writes the nodes, the engine reads what
// they made.
#pragma once

#include <string>
#include <vector>

#include "base/step_state.h"
#include "model/lowering.h"

namespace redline::model {

// The sums that one look brought to the host. Gradients are sums over pairs, as programs have them.
struct NormSums {
  std::vector<double> gradients, weights;  // sums of squares, by row of the parameter table
  std::vector<double> updates;             // the same; none where there was no room for the weights before
  UpdateResult small = {};                 // norm and pairs of the first micro-batch; no pairs: nobody looked
};

// One tensor.
struct TensorNorm {
  std::string name;  // "layer 3/qkv"
  double gradient = 0, weight = 0;
  double update = 0;  // NaN: not known
};
std::vector<TensorNorm> tensor_norms(const ParameterTable& table, const NormSums& sums, double pairs);

// Declares what the sums are written to.
void declare_norms(program::Builder& b, LoweredModel& m);
// Where each tensor stands in what this rank owns: what TensorSums::bounds holds.
std::vector<std::int64_t> tensor_bounds(const LoweredModel& m);

// Nodes before an update; what they return goes to those behind it. `updates`: with a copy of the weights.
program::ValueId norms_before_update(program::Builder& b, const LoweredModel& m, bool updates);
void norms_behind_update(program::Builder& b, const LoweredModel& m, program::ValueId before);

}  // namespace redline::model
