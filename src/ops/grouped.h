// A linear whose rows come in groups, each with a weight of its own (experts): rows of group g are those from
// offsets[g] to offsets[g + 1], back to back from row 0. Offsets lie in device memory and change from batch to batch,
// while capacities are fixed; a group may be empty. Rows after the last group belong to none: their y and dx are 0.
//   y[i] = x[i] * weight[g]^T
// Gradients: dx[i] (+)= dy[i] * weight[g];  dweight[g] (+)= sum over the rows i of g of dy[i]^T * x[i].
#pragma once

#include "base/tensor.h"
#include "ops/how.h"

namespace redline::ops {

template <class T>
struct GroupedLinear {
  static constexpr std::string_view kName = "grouped_linear";
  T x;            // [n, k]
  T weight;       // [groups, m, k]
  T offsets;      // [groups + 1] i32, never less than the one before; the first is 0, the last at most n
  T y;            // [n, m]  =
  T workspace{};  // bytes of scratch for a library; absent: it does without
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return GroupedLinear<U>{
        f("x", x, Access::read),  f("weight", weight, Access::read),        f("offsets", offsets, Access::read),
        f("y", y, Access::write), f("workspace", workspace, Access::write), how};
  }
  // As though every row had a group.
  double flops() const { return 2.0 * static_cast<double>(x.elements()) * static_cast<double>(y.columns()); }
};

template <class T>
struct GroupedLinearInputGrad {
  static constexpr std::string_view kName = "grouped_linear_input_grad";
  T dy;       // [n, m]
  T weight;   // [groups, m, k]
  T offsets;  // [groups + 1] i32
  T dx;       // [n, k]  = or +=
  bool accumulate{};
  T workspace{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return GroupedLinearInputGrad<U>{f("dy", dy, Access::read),
                                     f("weight", weight, Access::read),
                                     f("offsets", offsets, Access::read),
                                     f("dx", dx, written_or_added(accumulate)),
                                     accumulate,
                                     f("workspace", workspace, Access::write),
                                     how};
  }
  double flops() const { return 2.0 * static_cast<double>(dy.elements()) * static_cast<double>(dx.columns()); }
};

template <class T>
struct GroupedLinearWeightGrad {
  static constexpr std::string_view kName = "grouped_linear_weight_grad";
  T x;        // [n, k]
  T dy;       // [n, m]
  T offsets;  // [groups + 1] i32
  T dweight;  // [groups, m, k]  = or +=
  bool accumulate{};
  T workspace{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return GroupedLinearWeightGrad<U>{f("x", x, Access::read),
                                      f("dy", dy, Access::read),
                                      f("offsets", offsets, Access::read),
                                      f("dweight", dweight, written_or_added(accumulate)),
                                      accumulate,
                                      f("workspace", workspace, Access::write),
                                      how};
  }
  double flops() const { return 2.0 * static_cast<double>(x.elements()) * static_cast<double>(dy.columns()); }
};

}  // namespace redline::ops
