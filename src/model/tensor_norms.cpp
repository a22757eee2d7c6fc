// The nodes around an update that norms are made of, over what this rank owns; ranks add their sums up.
#include "model/tensor_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "program/builder.h"

namespace redline::model {

using program::Builder;
using program::ValueId;

std::vector<TensorNorm> tensor_norms(const ParameterTable& table, const NormSums& sums, double pairs) {
  std::vector<TensorNorm> norms;
  for (std::size_t i = 0; i < table.size(); ++i)
    norms.push_back({table[i].name, std::sqrt(sums.gradients[i]) / pairs, std::sqrt(sums.weights[i]),
                     sums.updates.empty() ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(sums.updates[i])});
  return norms;
}

void declare_norms(Builder& b, LoweredModel& m) {
  const auto tensors = static_cast<std::int64_t>(m.table.size());
  const auto sums = [&](const char* name) { return b.declare(name, {tensors}, DType::f64, program::Role::output); };
  m.norms = {.bounds = b.declare("tensor bounds", {tensors, 2}, DType::i64, program::Role::input),
             .gradients = sums("squares of gradients"),
             .weights = sums("squares of weights"),
             .updates = sums("squares of updates"),
             .small = b.declare("gradient of a micro-batch", {sizeof(UpdateResult)}, DType::u8, program::Role::output)};
}

std::vector<std::int64_t> tensor_bounds(const LoweredModel& m) {
  std::vector<std::int64_t> bounds;
  for (std::size_t i = 0; i < m.table.size(); ++i) {
    const std::int64_t offset = m.layout.offsets[i];
    const Range part = intersection({offset, offset + m.table[i].shape.elements()}, m.own);
    bounds.push_back(part.empty() ? 0 : part.begin - m.own.begin);
    bounds.push_back(part.empty() ? 0 : part.end - m.own.begin);
  }
  return bounds;
}

ValueId norms_before_update(Builder& b, const LoweredModel& m, bool updates) {
  b.tensor_sums({m.view(b, optim::kGradients, m.own), {}, m.norms.bounds, m.norms.gradients}, "gradient norms");
  return updates ? b.copy(m.view(b, optim::kParameters, m.own), "weights before") : program::kAbsent;
}

void norms_behind_update(Builder& b, const LoweredModel& m, ValueId before) {
  const ValueId weights = m.view(b, optim::kParameters, m.own);
  b.tensor_sums({weights, {}, m.norms.bounds, m.norms.weights}, "weight norms");
  if (before.present()) b.tensor_sums({weights, before, m.norms.bounds, m.norms.updates}, "update norms");
}

}  // namespace redline::model
