// The interface of an optimizer to lowering: its state from step to step, and the nodes of its update. One file an
// optimizer.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/shards.h"
#include "config/config.h"
#include "model/parameters.h"
#include "optim/muon.h"
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
  bool every = false;  // some of its nodes run every k-th step only
};

extern const Optimizer kAdamW, kMuon, kNorMuon;

// For optimizers of matrices. A matrix is one Hugging Face tensor of a parameter that its row says is updated by
// matrix.
struct LayerMatrix {
  std::int64_t offset, rows, columns;
  std::int32_t layer;
  std::string_view name;  // the Hugging Face name
  Range range() const { return {offset, offset + rows * columns}; }
};
std::vector<LayerMatrix> layer_matrices(const ParameterTable& table, const FlatLayout& layout);  // in its order

// Matrices of one shape at equal distances, which one node can update: in arrays with an element for each of theirs,
// and in arrays that keep something else for each matrix.
struct MatrixGroup {
  std::int64_t count = 0, rows = 0, columns = 0;
  struct Place {
    std::int64_t first = 0;  // of the first matrix: in the flat layout, or in an array of state
    optim::Spread spread = {};
  };
  std::vector<Place> places;  // the flat layout's, then one for each kind of state

  std::int64_t first() const { return places[0].first; }
  const optim::Spread& flat() const { return places[0].spread; }
};
// The groups among the parameters of m.updated: matrices of one shape within a layer, joined with the same of later
// layers, at most as many as there is room for. `state`: elements that are kept for a matrix, back to back in the order
// of layer_matrices.
using OfMatrix = std::function<std::int64_t(std::int64_t rows, std::int64_t columns)>;
std::vector<MatrixGroup> matrix_groups(const LoweredModel& m, const OfMatrix& room, const std::vector<OfMatrix>& state);

// AdamW's part of an optimizer that leaves it the parameters for which `holds` is true.
using Holds = std::function<bool(const ParameterSpec&)>;
optim::StateTable adamw_state_where(const ParameterTable& table, const FlatLayout& layout, const Range& updated,
                                    const config::Optim& settings, const Holds& holds);
void adamw_where(program::Builder& b, const LoweredModel& m, const config::Optim& settings, const Holds& holds);

}  // namespace redline::model
