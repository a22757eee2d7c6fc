// Gated linear units on the fused gate/up product, a row is [gate | up]:  y = act(gate) * up,  act(g) = g * sigmoid(u).
//   SwiGLU:  u = g                                          silu
//   GeGLU:   u = 2 sqrt(2 / pi) (g + 0.044715 g^3)          GELU in its form with tanh, as 1 + tanh(v) = 2 sigmoid(2 v)
// Gradient, s = sigmoid(u):  dup = dy * g * s;  dgate = dy * up * s * (1 + g * (1 - s) * du/dg).
#pragma once

#include "base/tensor.h"
#include "ops/fp8.h"
#include "ops/how.h"

namespace redline::ops {

enum class Gate : std::uint8_t { silu, gelu_tanh };

template <class T>
struct SwiGlu {
  static constexpr std::string_view kName = "swiglu";
  static constexpr Again kAgain = Again::widest;
  static constexpr bool kCastsOnCard = true;
  T gate_up;           // [n, 2 f]
  T y;                 // [n, f]  =  or absent with fp8
  Fp8Copies<T> fp8{};  // of y
  Gate gate{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", y, Access::read));
    return SwiGlu<U>{f("gate_up", gate_up, Access::read), f("y", y, Access::write), fp8.map(f), gate};
  }
};

template <class T>
struct SwiGluGrad {
  static constexpr std::string_view kName = "swiglu_grad";
  static constexpr bool kCastsOnCard = true;
  T gate_up;           // [n, 2 f]
  T dy;                // [n, f]
  T dgate_up;          // [n, 2 f]  =   may be gate_up itself; or absent with fp8
  Fp8Copies<T> fp8{};  // of dgate_up
  Gate gate{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return SwiGluGrad<U>{f("gate_up", gate_up, Access::read), f("dy", dy, Access::read),
                         f("dgate_up", dgate_up, Access::write), fp8.map(f), gate};
  }
};

}  // namespace redline::ops
