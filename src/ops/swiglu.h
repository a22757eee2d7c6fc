// SwiGLU on the fused gate/up product, a row is [gate | up]:  y = silu(gate) * up,  silu(g) = g * sigmoid(g).
// Gradient: dup = dy * silu(gate);  dgate = dy * up * sigmoid(gate) * (1 + gate * (1 - sigmoid(gate))).
#pragma once

#include "base/tensor.h"
#include "ops/fp8.h"
#include "ops/how.h"

namespace redline::ops {

template <class T>
struct SwiGlu {
  static constexpr std::string_view kName = "swiglu";
  static constexpr Again kAgain = Again::widest;
  static constexpr bool kCastsOnCard = true;
  T gate_up;           // [n, 2 f]
  T y;                 // [n, f]  =  or absent with fp8
  Fp8Copies<T> fp8{};  // of y

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", y, Access::read));
    return SwiGlu<U>{f("gate_up", gate_up, Access::read), f("y", y, Access::write), fp8.map(f)};
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

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return SwiGluGrad<U>{f("gate_up", gate_up, Access::read), f("dy", dy, Access::read),
                         f("dgate_up", dgate_up, Access::write), fp8.map(f)};
  }
};

}  // namespace redline::ops
