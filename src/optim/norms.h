// Norms over the flat arrays: of all gradients, which decides whether and how far an update moves, and of single
// tensors, for people to look at.
// sum_squares: totals = sum g^2 of what the gradients hold of each group (base/shards.h), and the loss and counts of
//             the step: what ranks add up. Where gradients come in pieces of whole groups, later ones add their sums.
//             A card cuts the groups of large arrays once more, by their size alone, since a piece has few of them.
// grad_norm:  norm = inv_pairs * sqrt(sum of squares), summed in a fixed order, inv_pairs = 1 / pairs, or 0 of none;
//             limit = spike * exp(usual.mean_log), once usual.count is at least kUsualLeast;
//             finite = norm and loss are finite, and the norm is not above the limit;
//             grad_scale = inv_pairs * min(1, clip / (norm + 1e-6));
//             where finite and norm > 0:  count = min(count + 1, kUsualMost);
//             mean_log += (log(norm) - mean_log) / count
// tensor_sums: sums[t] = sum over i in [bounds[t][0], bounds[t][1]) of (x[i] - minus[i])^2, for the norms of gradients,
//             weights and updates. A tensor is cut into kTensorSlices slices by its size alone, whose sums are added in
//             their order.
#pragma once

#include <algorithm>

#include "base/shards.h"
#include "base/step_state.h"
#include "base/tensor.h"
#include "optim/state.h"

namespace redline::optim {

// The sums that decide an update, in f64: squares of gradients by group, then the step's counts.
inline constexpr std::int64_t kLossTotal = kCutGroups, kCountTotals = kLossTotal + 1,
                              kTotals = kCountTotals + sizeof(StepCounts) / sizeof(double);

// The yardstick of a norm: the geometric mean of the last norms whose updates were made. Norms are above zero and
// spread over powers of ten, so that their logarithms have the mean.
struct UsualNorm {
  float mean_log = 0;
  float count = 0;  // of norms in it
};
inline constexpr float kUsualLeast = 20;  // norms before one can be unusual: those of the first steps fall fast
inline constexpr float kUsualMost = 64;   // norms that the mean remembers, about

inline constexpr std::string_view kUsual = "usual norm";

// Its row of the state, in a run that has a limit. A checkpoint may lack it.
inline StateArray usual_norm_state() {
  return {.name = std::string(kUsual),
          .independent = sizeof(UsualNorm) / sizeof(float),
          .file = kOptimizerFile,
          .stored_as = "guard.usual_norm",
          .may_be_absent = true};
}

// Parts of a group that a card sums apart: as many as have a quarter of a MiB or more.
constexpr std::int64_t group_slices(std::int64_t all) {
  return std::clamp<std::int64_t>(all / (kCutGroups << 16), 1, 32);
}

template <class T>
struct SumSquares {
  static constexpr std::string_view kName = "sum_squares";
  T gradients;             // [N], a stretch of all
  T loss_sum;              // [1] f64   or absent: 0
  T state;                 // StepState   or absent: one pair
  T totals{};              // [kTotals] f64  =   or, with `more`, squares +=
  std::int64_t begin = 0;  // where they stand among all gradients,
  std::int64_t all = 0;    // of which there are so many
  bool more = false;       // a node before had other groups of them
  T partial{};             // [kCutGroups, slices] f64 scratch, or absent: groups are not cut

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", totals, Access::read));
    return SumSquares<U>{f("gradients", gradients, Access::read),
                         f("loss_sum", loss_sum, Access::read),
                         f("state", state, Access::read),
                         f("totals", totals, written_or_added(more)),
                         begin,
                         all,
                         more,
                         f("partial", partial, Access::write)};
  }
};

template <class T>
struct GradNorm {
  static constexpr std::string_view kName = "grad_norm";
  T totals;       // [kTotals] f64
  T result;       // UpdateResult  =
  float clip{};   // 0: none
  T usual{};      // UsualNorm  in place, or absent: no limit
  float spike{};  // the limit, in usual norms

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", result, Access::read));
    return GradNorm<U>{f("totals", totals, Access::read), f("result", result, Access::write), clip,
                       f("usual", usual, Access::update), spike};
  }
};

inline constexpr std::int64_t kTensorSlices = 128, kSliceAlignment = 4;

// Where slice `s` of a tensor with n elements begins, in whole vectors; the last one ends with the tensor.
constexpr std::int64_t slice_begin(std::int64_t s, std::int64_t n) {
  const std::int64_t vectors = (n + kSliceAlignment - 1) / kSliceAlignment;
  const std::int64_t begin = (vectors * s + kTensorSlices - 1) / kTensorSlices * kSliceAlignment;
  return begin < n ? begin : n;
}

template <class T>
struct TensorSums {
  static constexpr std::string_view kName = "tensor_sums";
  T x;          // [N]
  T minus;      // [N]   or absent: 0
  T bounds;     // [tensors, 2] i64: begin, a multiple of kSliceAlignment, and end; of a tensor that is not here 0 and 0
  T sums;       // [tensors] f64  =
  T partial{};  // [tensors, kTensorSlices] f64 scratch

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", sums, Access::read));
    return TensorSums<U>{f("x", x, Access::read), f("minus", minus, Access::read), f("bounds", bounds, Access::read),
                         f("sums", sums, Access::write), f("partial", partial, Access::write)};
  }
};

}  // namespace redline::optim
