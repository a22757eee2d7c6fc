// Matrices in flat arrays and Muon's nodes over them, for the tests of either backend.
#pragma once

#include "base/step_state.h"
#include "optim/muon.h"
#include "testing/op_check.h"

namespace redline::testing {

// One alone; pairs with others between them; odd sizes at odd places; more elements than one part has.
inline const optim::Matrices kMatrices[] = {
    {1, 24, 40, {}, {}},
    {6, 16, 32, {2, 640, 2048}, {2, 16, 50}},
    {3, 7, 5, {1, 0, 41}, {1, 0, 9}},
    {2, 120, 136, {1, 0, 20000}, {1, 0, 120}},
};

inline optim::MuonMomentum<Tensor> momentum_of(Memory& memory, const optim::Matrices& m, const StepState& state,
                                               const UpdateResult& result) {
  const std::int64_t parts = optim::muon_parts(m.elements());
  return {memory.uniform({m.span()}, -5, 5),
          memory.uniform({m.span()}),
          memory.zeros({m.count, m.rows, m.columns}),
          memory.doubles(m.count * parts),
          memory.object(state),
          memory.object(result),
          m};
}

// With rows' moments where settings have a beta2.
inline optim::Muon<Tensor> update_of(Memory& memory, const optim::Matrices& m, const StepState& state,
                                     const UpdateResult& result, const optim::MuonSettings& settings, bool working) {
  const bool rows = settings.beta2 > 0;
  return {memory.uniform({m.count, m.rows, m.columns}, -0.3, 0.3),
          memory.uniform({m.span()}),
          working ? memory.uniform({m.span()}) : Tensor{},
          rows ? memory.uniform({m.row_span()}, 0.001, 0.01) : Tensor{},
          rows ? memory.zeros({2, m.count, m.rows}) : Tensor{},
          memory.object(state),
          memory.object(result),
          m,
          settings};
}

}  // namespace redline::testing
