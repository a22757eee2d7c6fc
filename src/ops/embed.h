// Embedding: y[i] = weight[tokens[i]].
// Gradient: dweight[t] (+)= sum of dy[i] over tokens[i] == t, in the order of i.
#pragma once

#include "base/operand.h"
#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct Embed {
  static constexpr std::string_view kName = "embed";
  T tokens;  // [n] i32
  T weight;  // [V, d]
  T y;       // [n, d]  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tokens, Access::read));
    return Embed<U>{f("tokens", tokens, Access::read), f("weight", weight, Access::read), f("y", y, Access::write)};
  }
};

template <class T>
struct EmbedGrad {
  static constexpr std::string_view kName = "embed_grad";
  T tokens;           // [n] i32
  T dy;               // [n, d]
  T dweight;          // [V, d]  = or +=
  bool accumulate{};  // += : a tied head has written it before

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tokens, Access::read));
    return EmbedGrad<U>{f("tokens", tokens, Access::read), f("dy", dy, Access::read),
                        f("dweight", dweight, written_or_added(accumulate)), accumulate};
  }
};

// Only the rows looked up are moved, not the table.
inline Cost cost(const Embed<Tensor>& op) {
  return {.bytes = static_cast<double>(op.tokens.bytes() + 2 * op.y.bytes())};
}
// Adding moves each row three times: dy in, dweight in and out. Writing also clears the whole table once.
inline Cost cost(const EmbedGrad<Tensor>& op) {
  return {.bytes =
              static_cast<double>(op.tokens.bytes() + 3 * op.dy.bytes() + (op.accumulate ? 0 : op.dweight.bytes()))};
}

}  // namespace redline::ops
