// Sums of squares by tensor of a flat array, or of the difference of two, for the norms of gradients, weights and
// updates.
//   sums[t] = sum over i in [bounds[t][0], bounds[t][1]) of (x[i] - minus[i])^2
// A tensor is cut into kTensorSlices slices by its size alone, whose sums are added in their order.
#pragma once

#include <algorithm>

#include "base/tensor.h"

namespace redline::optim {

inline constexpr std::int64_t kTensorSlices = 128, kSliceAlignment = 4;

// Where slice `s` of a tensor with n elements begins, in whole vectors; the last one ends with the tensor.
constexpr std::int64_t slice_begin(std::int64_t s, std::int64_t n) {
  const std::int64_t vectors = (n + kSliceAlignment - 1) / kSliceAlignment;
  const std::int64_t begin = (vectors * s + kTensorSlices - 1) / kTensorSlices * kSliceAlignment;
  return begin < n ? begin : n;
}

template <class T>
struct TensorSums {
  static constexpr std::string_view kName = "tensor_sums";
  T x;          // [N]
  T minus;      // [N]   or absent: 0
  T bounds;     // [tensors, 2] i64: begin, a multiple of kSliceAlignment, and end; of a tensor that is not here 0 and 0
  T sums;       // [tensors] f64  =
  T partial{};  // [tensors, kTensorSlices] f64 scratch

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", sums, Access::read));
    return TensorSums<U>{f("x", x, Access::read), f("minus", minus, Access::read), f("bounds", bounds, Access::read),
                         f("sums", sums, Access::write), f("partial", partial, Access::write)};
  }
};

}  // namespace redline::optim
