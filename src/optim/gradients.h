// Gradients that are kept in bf16 (precision.gradients), and added up over micro-batches there.
// round_gradients: g = x, or g + x where a micro-batch came before, rounded at random to bf16 (optim/moments.h has the
//                  rule): the mean of many roundings is the number itself, so that what is small beside the sum is not
//                  lost. The random bits follow from the seed, the step, the micro-batch and the element's place:
//                  words = Random(seed, kGradientStreams + step).words(first_token * ceil(all / 8) + place / 8);
//                  the bits are the place % 8-th sixteen of them, lower half first.
// widen_gradients: x = g in fp32, for the nodes of an update.
#pragma once

#include "base/step_state.h"
#include "base/tensor.h"

namespace redline::optim {

inline constexpr std::uint64_t kGradientStreams = std::uint64_t{1} << 62;  // no other stream of a seed is there
inline constexpr std::int64_t kRoundedGradients = 8;                       // elements whose bits one draw gives

template <class T>
struct RoundGradients {
  static constexpr std::string_view kName = "round_gradients";
  T x;                     // [N] f32
  T state;                 // StepState
  T gradients;             // [N] bf16  =   or +=
  std::int64_t begin = 0;  // where they stand among all gradients,
  std::int64_t all = 0;    // of which there are so many
  bool accumulate = false;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return RoundGradients<U>{f("x", x, Access::read),
                             f("state", state, Access::read),
                             f("gradients", gradients, written_or_added(accumulate)),
                             begin,
                             all,
                             accumulate};
  }
};

template <class T>
struct WidenGradients {
  static constexpr std::string_view kName = "widen_gradients";
  T gradients;  // [N] bf16
  T x;          // [N] f32  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return WidenGradients<U>{f("gradients", gradients, Access::read), f("x", x, Access::write)};
  }
};

}  // namespace redline::optim
