// The update, over flat arrays that hold every parameter back to back: no list of tensors, a node for all of a range.
// sum_squares: totals = sum g^2 of what the gradients hold of each group (base/shards.h), and the loss and counts of
//             the step: what ranks add up.
// grad_norm:  norm = inv_pairs * sqrt(sum of squares), summed in a fixed order, inv_pairs = 1 / pairs, or 0 of none;
//             limit = spike * exp(usual.mean_log), once usual.count is at least kUsualLeast;
//             finite = norm and loss are finite, and the norm is not above the limit;
//             grad_scale = inv_pairs * min(1, clip / (norm + 1e-6));
//             where finite and norm > 0:  count = min(count + 1, kUsualMost);
//             mean_log += (log(norm) - mean_log) / count
// adamw, g = grad_scale * gradient, skipped whole when not finite:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p = p - lr * (weight_decay * weight_decay_share) * p - lr * (m / correction1) / (sqrt(v / correction2) + eps)
//   working = p, in the type that products take: absent where that is p's own
//   m and v may be kept as bf16 or as codes of eight bits with scales (optim/moments.h): computed in fp32, p moves by
//   them before they are rounded
// refresh:    working = parameters, when they came from elsewhere than an update; or a copy of any fp32 array.
#pragma once

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

// Its row of the state, in a run that has a limit. A checkpoint may lack it: it is found anew.
inline StateArray usual_norm_state() {
  return {.name = std::string(kUsual),
          .independent = sizeof(UsualNorm) / sizeof(float),
          .file = kOptimizerFile,
          .stored_as = "guard.usual_norm",
          .found_anew = true};
}

template <class T>
struct SumSquares {
  static constexpr std::string_view kName = "sum_squares";
  T gradients;             // [N], a stretch of all
  T loss_sum;              // [1] f64   or absent: 0
  T state;                 // StepState   or absent: one pair
  T totals{};              // [kTotals] f64  =
  std::int64_t begin = 0;  // where they stand among all gradients,
  std::int64_t all = 0;    // of which there are so many

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", totals, Access::read));
    return SumSquares<U>{f("gradients", gradients, Access::read),
                         f("loss_sum", loss_sum, Access::read),
                         f("state", state, Access::read),
                         f("totals", totals, Access::write),
                         begin,
                         all};
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

struct AdamWSettings {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
};

inline constexpr std::string_view kFirstMoments = "first moments", kSecondMoments = "second moments";
inline constexpr std::string_view kFirstScales = "scales of first moments", kSecondScales = "scales of second moments";

// The moments that AdamW keeps for the parameters of a range, in f32, bf16 or u8: the u8 are codes, with a scale for
// each block. Where ranks share `all` of them, this rank has the range.
inline StateTable adamw_state(Range range, Range all = {}, DType moments = DType::f32) {
  StateTable table;
  const auto add = [&](std::string_view name, DType dtype, std::int64_t block, const char* stored_as) {
    table.push_back({.name = std::string(name),
                     .dtype = dtype,
                     .range = range,
                     .block = block,
                     .file = kOptimizerFile,
                     .stored_as = stored_as,
                     .shared = all});
  };
  add(kFirstMoments, moments, 1, "exp_avg.");
  add(kSecondMoments, moments, 1, "exp_avg_sq.");
  if (moments != DType::u8) return table;
  add(kFirstScales, DType::f32, kCutBlock, "exp_avg_scales");
  add(kSecondScales, DType::f32, kCutBlock, "exp_avg_sq_scales");
  return table;
}

template <class T>
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  T parameters;  // [N]  in place
  T gradients;   // [N]
  T moment1;     // [N]  in place: f32, bf16 or u8
  T moment2;     // [N]  in place: the same type
  T working;     // [N]  =   or absent
  T state;       // StepState
  T result;      // UpdateResult
  AdamWSettings settings{};
  T scales1{};             // [blocks that the N elements touch]  in place, where moments are u8
  T scales2{};             // the same
  std::int64_t begin = 0;  // where they stand among all parameters: of what is rounded, and of blocks

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", result, Access::read));
    return AdamW<U>{f("parameters", parameters, Access::update),
                    f("gradients", gradients, Access::read),
                    f("moment1", moment1, Access::update),
                    f("moment2", moment2, Access::update),
                    f("working", working, Access::write),
                    f("state", state, Access::read),
                    f("result", result, Access::read),
                    settings,
                    f("scales1", scales1, Access::update),
                    f("scales2", scales2, Access::update),
                    begin};
  }
};

template <class T>
struct Refresh {
  static constexpr std::string_view kName = "refresh";
  T parameters;  // [N]
  T working;     // [N]  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", working, Access::read));
    return Refresh<U>{f("parameters", parameters, Access::read), f("working", working, Access::write)};
  }
};

}  // namespace redline::optim
