// RMSNorm of a branch, and its addition to the residual stream, in one pass: for models with the norm behind a branch.
//   rstd = 1 / sqrt(mean(branch^2) + eps)
//   residual_out = residual_in + branch * rstd * weight
// The gradient of residual_in is that of residual_out itself. The gradients of branch and weight are AddNormGrad's with
// dy = the gradient of residual_out and the branch as what was normalised, so there is no op of their own for them.
#pragma once

#include "base/tensor.h"
#include "ops/add_norm.h"

namespace redline::ops {

template <class T>
struct NormAdd {
  static constexpr std::string_view kName = "norm_add";
  T residual_in;   // [n, d]
  T branch;        // [n, d]
  T weight;        // [d]
  T residual_out;  // [n, d]  =
  T rstd;          // [n]     =
  float eps{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return NormAdd<U>{f("residual_in", residual_in, Access::read),
                      f("branch", branch, Access::read),
                      f("weight", weight, Access::read),
                      f("residual_out", residual_out, Access::write),
                      f("rstd", rstd, Access::write),
                      eps};
  }
};

}  // namespace redline::ops
