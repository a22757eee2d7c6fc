// y = a + b: where a value has several readers, its gradient is the sum of theirs.
#pragma once

#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct Add {
  static constexpr std::string_view kName = "add";
  static constexpr bool kInPlace = true;  // it may write what it reads
  T a;                                    // any shape
  T b;                                    // the same
  T y;                                    // the same  =

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", a, Access::read));
    return Add<U>{f("a", a, Access::read), f("b", b, Access::read), f("y", y, Access::write)};
  }
};

}  // namespace redline::ops
