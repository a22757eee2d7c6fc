// Muon, the update of matrices by orthogonalised momentum (docs/training.md), in three nodes over many matrices of
// one shape: muon_momentum, ops::Orthogonalize, muon. g = grad_scale * gradient; skipped whole when not finite.
// muon_momentum:  M = mu M + g;  U = g + mu M;  x = U / (1.02 ||U|| + 1e-30), or 0 where the step is skipped
// muon, O what became of x, u = O or NorMuon's:
//   s_i = mean of O^2 over row i;  v_i = beta2 v_i + (1 - beta2) s_i;  u_i = O_i / (sqrt(v_i) + 1e-8) * ||O|| / ||u||
//   p = p - lr * (weight_decay * weight_decay_share) * p - lr * 0.2 sqrt(max(rows, columns)) u;  working = p
// A cautious decay is left out where u moves p away from zero.
#pragma once

#include <algorithm>

#include "base/step_state.h"
#include "base/tensor.h"
#include "optim/state.h"

namespace redline::optim {

// The places of the matrices' parts in an array. Parts come in groups of `inner`, `inner_stride` elements apart; each
// group begins `stride` elements after the one before.
struct Spread {
  std::int64_t inner = 1, inner_stride = 0, stride = 0;
  constexpr std::int64_t at(std::int64_t i) const { return i / inner * stride + i % inner * inner_stride; }
  bool operator==(const Spread&) const = default;
};

// Matrices of one shape that lie in flat arrays, other parameters between them.
struct Matrices {
  std::int64_t count = 0, rows = 0, columns = 0;
  Spread flat = {};    // in arrays with an element for each of theirs
  Spread by_row = {};  // in those with one a row

  std::int64_t elements() const { return rows * columns; }  // of one
  std::int64_t span() const { return flat.at(count - 1) + elements(); }
  std::int64_t row_span() const { return by_row.at(count - 1) + rows; }
};

// Parts of a matrix whose squares are summed apart.
constexpr std::int64_t muon_parts(std::int64_t elements) { return std::clamp<std::int64_t>(elements / 4096, 1, 256); }
inline constexpr float kMuonScale = 0.2f;  // of a step: about the root mean square of AdamW's
inline constexpr float kNorMuonEps = 1e-8f;

inline constexpr std::string_view kMomentum = "momentum", kRowMoments = "row moments";

struct MuonSettings {
  float weight_decay = 0.1f;
  float beta2 = 0;        // of NorMuon's second moment; 0: none
  bool cautious = false;  // decay
};

template <class T>
struct MuonMomentum {
  static constexpr std::string_view kName = "muon_momentum";
  T gradients;  // [span], from the first matrix to the last
  T momentum;   // [span]  in place
  T x;          // [count, rows, columns]  =
  T partial;    // [count, muon_parts] f64  =   scratch
  T state;      // StepState
  T result;     // UpdateResult
  Matrices matrices{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", result, Access::read));
    return MuonMomentum<U>{f("gradients", gradients, Access::read),
                           f("momentum", momentum, Access::update),
                           f("x", x, Access::write),
                           f("partial", partial, Access::write),
                           f("state", state, Access::read),
                           f("result", result, Access::read),
                           matrices};
  }
};

template <class T>
struct Muon {
  static constexpr std::string_view kName = "muon";
  T x;              // [count, rows, columns]
  T parameters;     // [span]  in place
  T working;        // [span]  in place, what is not theirs stays   or absent
  T row_moments{};  // [row_span]  in place   or absent: no NorMuon
  T partial{};      // [2, count, rows]  =   scratch, of NorMuon
  T state;          // StepState
  T result;         // UpdateResult
  Matrices matrices{};
  MuonSettings settings{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", result, Access::read));
    return Muon<U>{f("x", x, Access::read),
                   f("parameters", parameters, Access::update),
                   f("working", working, Access::update),
                   f("row_moments", row_moments, Access::update),
                   f("partial", partial, Access::write),
                   f("state", state, Access::read),
                   f("result", result, Access::read),
                   matrices,
                   settings};
  }
};

// The cost of the matrices alone, though operands reach from the first matrix to the last.
inline Cost cost(const MuonMomentum<Tensor>& op) {
  const double elements = static_cast<double>(op.matrices.count * op.matrices.elements());
  return {.bytes = elements * (3 * sizeof(float) + static_cast<double>(size_of(op.x.dtype)))};
}
inline Cost cost(const Muon<Tensor>& op) {
  const double elements = static_cast<double>(op.matrices.count * op.matrices.elements());
  const double working = op.working.present() ? static_cast<double>(size_of(op.working.dtype)) : 0;
  return {.bytes = elements * (2 * sizeof(float) + static_cast<double>(size_of(op.x.dtype)) + working)};
}

}  // namespace redline::optim
