// to = from, byte for byte. The two may lie in different memories; every other op finds its operands in the device's.
#pragma once

#include <string_view>

#include "base/tensor.h"

namespace redline::ops {

template <class T>
struct Copy {
  static constexpr std::string_view kName = "copy";
  T from;
  T to;  // =   of the same type and shape

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", to, Access::read));
    return Copy<U>{f("from", from, Access::read), f("to", to, Access::write)};
  }
};

}  // namespace redline::ops
