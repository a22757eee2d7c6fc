// Arrays that are kept in bf16 and computed with in fp32: gradients (precision.gradients), added up over micro-batches,
// and masters (precision.masters), moved by an update.
// round_at_random: kept = x, or kept + x with `accumulate`, rounded at random to bf16 (optim/moments.h has the rule):
//                  the mean of many roundings is the number itself, so that what is small beside it is not lost. A
//                  number that bf16 has stays as it is. The random bits follow from the seed, the step, the element's
//                  place and, of gradients, the micro-batch:
//                  words = Random(seed, streams of the kind + step).words(first_draw + place / 8);
//                  the bits are the place % 8-th sixteen of them, lower half first.
// widen:           x = kept in fp32, for the nodes of an update.
#pragma once

#include "base/step_state.h"
#include "base/tensor.h"

namespace redline::optim {

// What is rounded: each kind has random bits of its own.
enum class Rounded : std::uint8_t { gradients, masters };

// No other stream of a seed is there.
constexpr std::uint64_t first_stream(Rounded what) { return std::uint64_t{what == Rounded::gradients ? 2u : 3u} << 61; }
inline constexpr std::int64_t kRoundedInOneDraw = 8;  // elements whose bits one draw gives
// Draws before those of a micro-batch, of so many elements; masters move once a step.
constexpr std::uint64_t first_draw(Rounded what, std::uint64_t first_token, std::int64_t all) {
  if (what == Rounded::masters) return 0;
  return first_token * static_cast<std::uint64_t>((all + kRoundedInOneDraw - 1) / kRoundedInOneDraw);
}

template <class T>
struct RoundAtRandom {
  static constexpr std::string_view kName = "round_at_random";
  T x;                     // [N] f32
  T state;                 // StepState
  T kept;                  // [N] bf16  =   or +=
  std::int64_t begin = 0;  // where they stand among all of their kind,
  std::int64_t all = 0;    // of which there are so many
  bool accumulate = false;
  Rounded what = Rounded::gradients;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return RoundAtRandom<U>{f("x", x, Access::read),
                            f("state", state, Access::read),
                            f("kept", kept, written_or_added(accumulate)),
                            begin,
                            all,
                            accumulate,
                            what};
  }
};

template <class T>
struct Widen {
  static constexpr std::string_view kName = "widen";
  T kept;  // [N] bf16
  T x;     // [N] f32  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Widen<U>{f("kept", kept, Access::read), f("x", x, Access::write)};
  }
};

}  // namespace redline::optim
