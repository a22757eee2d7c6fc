// Dropout by counter: y = keep ? x / (1 - p) : 0, where keep depends on (seed, step, stream, global index of the element)
// alone, so that the backward pass, a resumed run and any number of ranks draw the same mask. It is its own gradient.
//   element e of token t:  words = Random(seed, stream * 2^40 + step).words((first_token + t) * ceil(d / 4) + e / 4)
//                          keep when words[e mod 4] >= p * 2^32
#pragma once

#include "base/operand.h"
#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct Dropout {
  static constexpr std::string_view kName = "dropout";
  T x;      // [n, d]
  T state;  // StepState
  T y;      // [n, d]  =   may be x itself
  float p{};
  std::uint64_t stream{};  // which dropout of the model this is

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Dropout<U>{f("x", x, Access::read), f("state", state, Access::read), f("y", y, Access::write), p, stream};
  }
};

}  // namespace redline::ops
