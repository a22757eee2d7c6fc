// y = x * weight^T, plus a bias for every row where there is one; weight is stored [out, in] as in Hugging Face files.
// Fused QKV and fused gate/up are one linear each.
// Gradients: dx (+)= dy * weight;  dweight (+)= dy^T * x;  dbias (+)= sum over rows of dy.
#pragma once

#include "base/tensor.h"
#include "ops/how.h"

namespace redline::ops {

inline constexpr std::int64_t kProductWorkspaceBytes = std::int64_t{32} << 20;  // that a card's library may use

template <class T>
struct Linear {
  static constexpr std::string_view kName = "linear";
  T x;            // [n, k]
  T weight;       // [m, k]
  T y;            // [n, m]  =
  T workspace{};  // bytes of scratch for a library; absent: it does without
  ProductHow how{};
  T bias{};  // [m] or absent; of the type of y

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Linear<U>{f("x", x, Access::read),
                     f("weight", weight, Access::read),
                     f("y", y, Access::write),
                     f("workspace", workspace, Access::write),
                     how,
                     f("bias", bias, Access::read)};
  }
  double flops() const { return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements()); }
};

template <class T>
struct LinearInputGrad {
  static constexpr std::string_view kName = "linear_input_grad";
  T dy;               // [n, m]
  T weight;           // [m, k]
  T dx;               // [n, k]  = or +=
  bool accumulate{};  // += : x has another reader, whose part is there
  T workspace{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return LinearInputGrad<U>{f("dy", dy, Access::read),
                              f("weight", weight, Access::read),
                              f("dx", dx, written_or_added(accumulate)),
                              accumulate,
                              f("workspace", workspace, Access::write),
                              how};
  }
  double flops() const { return 2.0 * static_cast<double>(dy.rows()) * static_cast<double>(weight.elements()); }
};

template <class T>
struct LinearWeightGrad {
  static constexpr std::string_view kName = "linear_weight_grad";
  T x;        // [n, k]
  T dy;       // [n, m]
  T dweight;  // [m, k]  = or +=
  bool accumulate{};
  T workspace{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return LinearWeightGrad<U>{f("x", x, Access::read),
                               f("dy", dy, Access::read),
                               f("dweight", dweight, written_or_added(accumulate)),
                               accumulate,
                               f("workspace", workspace, Access::write),
                               how};
  }
  double flops() const { return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(dweight.elements()); }
};

template <class T>
struct BiasGrad {
  static constexpr std::string_view kName = "bias_grad";
  T dy;     // [n, m]
  T dbias;  // [m]  = or +=
  bool accumulate{};
  T partial{};  // [kRowGroups, m]  scratch, of which the CPU has no need

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return BiasGrad<U>{f("dy", dy, Access::read), f("dbias", dbias, written_or_added(accumulate)), accumulate,
                       f("partial", partial, Access::write)};
  }
};

}  // namespace redline::ops
