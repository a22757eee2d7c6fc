// The ops of the residual stream: RMSNorm before a branch, RMSNorm after one, and plain sums.
// add_norm, residual add and RMSNorm in one pass:
//   residual_out = residual_in + branch            (branch may be absent: residual_out is then absent too, and the
//   rstd = 1 / sqrt(mean(residual_out^2) + eps)     residual stream stays where it is)
//   y = residual_out * rstd * weight
// Gradient, r = residual_out, h = dy * weight:
//   dresidual (+)= rstd * (h - r * rstd^2 * mean(h * r))     which is the gradient of residual_in and of branch alike
//   dweight   (+)= sum over rows of dy * r * rstd
// norm_add, RMSNorm of a branch and its addition to the residual stream, for models with the norm after a branch:
//   rstd = 1 / sqrt(mean(branch^2) + eps)
//   residual_out = residual_in + branch * rstd * weight
// The gradient of residual_in is that of residual_out itself. The gradients of branch and weight are AddNormGrad's with
// dy = the gradient of residual_out and the branch as what was normalised, so there is no op of their own for them.
// With one_plus the weight counts as 1 + weight in all three; its gradient is the same.
// add:  y = a + b. Where a value has several readers, its gradient is the sum of theirs.
#pragma once

#include "base/tensor.h"
#include "ops/fp8.h"

namespace redline::ops {

// Sums over rows are taken in this many fixed groups, then over the groups in order: the same bits on any thread count.
inline constexpr std::int64_t kRowGroups = 264;

// The rows of a group, where they are summed on a card. Groups take rows `at_once` at a time. All have the same number
// of rounds, except the last ones. If a few groups had one round more, the card would wait for it: 3% of the time where
// there are 31.
struct RowRange {
  std::int64_t begin, end;
};
constexpr RowRange rows_of_group(std::int64_t group, std::int64_t rows, std::int64_t at_once) {
  const std::int64_t rounds = (rows + at_once - 1) / at_once, each = (rounds + kRowGroups - 1) / kRowGroups;
  const std::int64_t begin = group * each * at_once, end = begin + each * at_once;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

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
  bool one_plus{};

  // Made again, y and rstd follow from the sum as it was stored: where that is kept, neither addend has to be.
  T addend() const { return branch; }  // absent: there is no sum
  AddNorm from_sum() const { return {residual_out, {}, weight, {}, y, rstd, eps, fp8, one_plus}; }

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
                      fp8.map(f),
                      one_plus};
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
  bool one_plus{};

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
                          fp8.map(f),
                          one_plus};
  }
};

template <class T>
struct NormAdd {
  static constexpr std::string_view kName = "norm_add";
  T residual_in;   // [n, d]
  T branch;        // [n, d]
  T weight;        // [d]
  T residual_out;  // [n, d]  =
  T rstd;          // [n]     =
  float eps{};
  bool one_plus{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return NormAdd<U>{f("residual_in", residual_in, Access::read),
                      f("branch", branch, Access::read),
                      f("weight", weight, Access::read),
                      f("residual_out", residual_out, Access::write),
                      f("rstd", rstd, Access::write),
                      eps,
                      one_plus};
  }
};

template <class T>
struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr bool kInPlace = true;  // it may write what it reads
  T a;                                    // any shape
  T b;                                    // the same
  T y;                                    // the same  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", a, Access::read));
    return Add<U>{f("a", a, Access::read), f("b", b, Access::read), f("y", y, Access::write)};
  }
};

}  // namespace redline::ops
