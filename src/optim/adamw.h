// AdamW, over flat arrays that hold every parameter back to back: no list of tensors, a node for all of a range. Then
// what is copied from the parameters: working copies, and an average of the weights (train.average).
// adamw, g = grad_scale * gradient (optim/norms.h), skipped when not finite, but for the working copies, whose memory
// may have held something else meanwhile:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   p = p - lr * (weight_decay * weight_decay_share) * p - lr * (m / correction1) / (sqrt(v / correction2) + eps)
//   working = p, in the type that products take: absent where that is p's own
//   m and v may be kept as bf16 or as codes of eight bits with scales (optim/moments.h): computed in fp32, p moves by
//   them before they are rounded
// refresh:    working = parameters, when they came from elsewhere than an update; or a copy of any fp32 array.
// average:    average = parameters where the share is 1, else average + share * (parameters - average);
//             left as it is where the update was not made. The share is the step's (StepState): average_share of
//             optim/schedule.h.
// exchange:   both arrays change places: where products take the parameters themselves, an evaluation of the average
//             has it stand in their place meanwhile.
#pragma once

#include "base/shards.h"
#include "base/step_state.h"
#include "base/tensor.h"
#include "optim/state.h"

namespace redline::optim {

struct AdamWSettings {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
};

inline constexpr std::string_view kFirstMoments = "first moments", kSecondMoments = "second moments";
inline constexpr std::string_view kFirstScales = "scales of first moments", kSecondScales = "scales of second moments";

// The moments that AdamW keeps for the parameters of a range, in f32, bf16 or u8: the u8 are codes, with a scale for
// each block. Where ranks share `all` of them, this rank has the range.
inline StateTable adamw_state(Range range, Range all = {}, DType moments = DType::f32) {
  StateTable table;
  const auto add = [&](std::string_view name, StateKind kind, DType dtype, std::int64_t block, const char* stored_as) {
    table.push_back({.name = std::string(name),
                     .dtype = dtype,
                     .range = range,
                     .block = block,
                     .file = kOptimizerFile,
                     .stored_as = stored_as,
                     .shared = all,
                     .kind = kind});
  };
  add(kFirstMoments, StateKind::first_moments, moments, 1, "exp_avg.");
  add(kSecondMoments, StateKind::second_moments, moments, 1, "exp_avg_sq.");
  if (moments != DType::u8) return table;
  add(kFirstScales, StateKind::moment_scales, DType::f32, kCutBlock, "exp_avg_scales");
  add(kSecondScales, StateKind::moment_scales, DType::f32, kCutBlock, "exp_avg_sq_scales");
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

inline constexpr std::string_view kAverage = "average";

// Its row of the state, for the parameters of a range. Where ranks share `all` of them, this rank has the range. Its
// tensors have the parameters' own names, in a file of their own.
inline StateArray average_state(Range range, Range all = {}) {
  return {.name = std::string(kAverage), .range = range, .file = kAverageFile, .shared = all};
}

template <class T>
struct Average {
  static constexpr std::string_view kName = "average";
  T parameters;  // [N]
  T average;     // [N]  in place
  T state;       // StepState
  T result;      // UpdateResult

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", average, Access::read));
    return Average<U>{f("parameters", parameters, Access::read), f("average", average, Access::update),
                      f("state", state, Access::read), f("result", result, Access::read)};
  }
};

template <class T>
struct Exchange {
  static constexpr std::string_view kName = "exchange";
  T parameters;  // [N]  in place
  T average;     // [N]  in place

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", average, Access::read));
    return Exchange<U>{f("parameters", parameters, Access::update), f("average", average, Access::update)};
  }
};

}  // namespace redline::optim
