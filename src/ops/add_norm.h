// Residual add and RMSNorm in one pass:
//   residual_out = residual_in + branch            (branch may be absent: residual_out is then absent too, and the
//   rstd = 1 / sqrt(mean(residual_out^2) + eps)     residual stream stays where it is)
//   y = residual_out * rstd * weight
// Gradient, r = residual_out, h = dy * weight:
//   dresidual (+)= rstd * (h - r * rstd^2 * mean(h * r))     which is the gradient of residual_in and of branch alike
//   dweight   (+)= sum over rows of dy * r * rstd
#pragma once

#include "base/tensor.h"
#include "ops/fp8.h"

namespace redline::ops {

// Sums over rows are taken in this many fixed groups, then over the groups in order: the same bits on any thread count.
inline constexpr std::int64_t kRowGroups = 264;

template <class T>
struct AddNorm {
  static constexpr std::string_view kName = "add_norm";
  static constexpr bool kCastsOnCard = true;
  T residual_in;   // [n, d]
  T branch;        // [n, d] or absent
  T weight;        // [d]
  T residual_out;  // [n, d]  =   absent with branch
  T y;             // [n, d]  =   or absent with fp8
  T rstd;          // [n]     =
  float eps{};
  Fp8Copies<T> fp8{};  // of y

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return AddNorm<U>{f("residual_in", residual_in, Access::read),
                      f("branch", branch, Access::read),
                      f("weight", weight, Access::read),
                      f("residual_out", residual_out, Access::write),
                      f("y", y, Access::write),
                      f("rstd", rstd, Access::write),
                      eps,
                      fp8.map(f)};
  }
};

template <class T>
struct AddNormGrad {
  static constexpr std::string_view kName = "add_norm_grad";
  static constexpr bool kCastsOnCard = true;
  T dy;         // [n, d]
  T residual;   // [n, d]  what was normalised
  T weight;     // [d]
  T rstd;       // [n]
  T dresidual;  // [n, d]  += when the residual stream has a gradient from above already, else =
  T dweight;    // [d]     = or +=
  T partial;    // [kRowGroups, d]  scratch
  bool accumulate_residual{};
  bool accumulate_weight{};
  Fp8Copies<T> fp8{};  // of dresidual

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return AddNormGrad<U>{f("dy", dy, Access::read),
                          f("residual", residual, Access::read),
                          f("weight", weight, Access::read),
                          f("rstd", rstd, Access::read),
                          f("dresidual", dresidual, written_or_added(accumulate_residual)),
                          f("dweight", dweight, written_or_added(accumulate_weight)),
                          f("partial", partial, Access::write),
                          accumulate_residual,
                          accumulate_weight,
                          fp8.map(f)};
  }
};

}  // namespace redline::ops
