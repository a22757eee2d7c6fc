// Dropout by counter: y = keep ? x * scale : 0, where keep depends on (seed, step, stream, global index of the element)
// alone, so that the backward pass, a resumed run and any number of ranks draw the same mask. It is its own gradient.
//   element e of token t:  words = Random(seed, stream * 2^40 + step).words((first_token + t) * ceil(d / 8) + e / 8)
//                          keep when the e mod 8-th sixteen bits of words, lower half first, are at least threshold
// Sixteen bits an element: with 32, drawing them took longer on a GPU than moving the element. p is therefore rounded
// to a multiple of 2^-16, and kept elements are scaled for this rounded p.
#pragma once

#include <cmath>

#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct Dropout {
  static constexpr std::string_view kName = "dropout";
  static constexpr bool kInPlace = true;  // it may write what it reads
  T x;                                    // [n, d]
  T state;                                // StepState
  T y;                                    // [n, d]  =   may be x itself
  float p{};
  std::uint64_t stream{};  // which dropout of the model this is

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Dropout<U>{f("x", x, Access::read), f("state", state, Access::read), f("y", y, Access::write), p, stream};
  }
};

struct DropoutRule {
  std::uint32_t threshold;  // of 2^16; 2^16 itself keeps nothing
  float scale;
};
inline DropoutRule rule_of(float p) {
  const auto threshold = static_cast<std::uint32_t>(std::lround(static_cast<double>(p) * 0x1p16));
  return {threshold, threshold < 0x10000u ? 0x1p16f / static_cast<float>(0x10000u - threshold) : 0.0f};
}
inline constexpr int kDropoutBlock = 8;  // elements of one Philox block

}  // namespace redline::ops
