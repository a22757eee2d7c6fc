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

// The same of operands in eight bits (ops/fp8.h), which lie by rows of what is summed over. What has rows of groups has
// one scale, weights have one for each group's matrix: groups without rows keep theirs.
//   y, and dx with each matrix turned over:  c[i] (+)= a[i] * b[g]^T / (scale of a * scale of b[g])
template <class T>
struct GroupedFp8Product {
  static constexpr std::string_view kName = "grouped_fp8_product";
  T a;         // [n, k]  e4m3, or e5m2 of gradients
  T b;         // [groups, m, k]  e4m3
  T offsets;   // [groups + 1] i32
  T a_scale;   // Fp8Scale
  T b_scales;  // [groups] Fp8Scale
  T c;         // [n, m]  = or +=
  bool accumulate{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", a, Access::read));
    return GroupedFp8Product<U>{f("a", a, Access::read),
                                f("b", b, Access::read),
                                f("offsets", offsets, Access::read),
                                f("a_scale", a_scale, Access::read),
                                f("b_scales", b_scales, Access::read),
                                f("c", c, written_or_added(accumulate)),
                                accumulate,
                                how};
  }
  double flops() const { return 2.0 * static_cast<double>(a.elements()) * static_cast<double>(c.columns()); }
};

//   dweight[g] (+)= dy^T x over the rows of g, both turned over, / (scale of dy * scale of x)
// dy and x are columns in blocks (ops/fp8.h).
template <class T>
struct GroupedFp8WeightGrad {
  static constexpr std::string_view kName = "grouped_fp8_weight_grad";
  T dy;        // [blocks, m, kColumnBlock]  e5m2
  T x;         // [blocks, k, kColumnBlock]  e4m3
  T offsets;   // [groups + 1] i32
  T dy_scale;  // Fp8Scale
  T x_scale;   // Fp8Scale
  T dweight;   // [groups, m, k]  = or +=
  std::int64_t n{};
  bool accumulate{};
  ProductHow how{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dy, Access::read));
    return GroupedFp8WeightGrad<U>{f("dy", dy, Access::read),
                                   f("x", x, Access::read),
                                   f("offsets", offsets, Access::read),
                                   f("dy_scale", dy_scale, Access::read),
                                   f("x_scale", x_scale, Access::read),
                                   f("dweight", dweight, written_or_added(accumulate)),
                                   n,
                                   accumulate,
                                   how};
  }
  double flops() const {
    return 2.0 * static_cast<double>(n) * static_cast<double>(dweight.shape[1]) * static_cast<double>(dweight.shape[2]);
  }
};

}  // namespace redline::ops
