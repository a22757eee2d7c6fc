// Counts of the values of a copy in eight bits, for people to look at. It is no node of a program: a step without a
// look has no count. A zero and a value too small for its scale have the same code and count alike, and so do the
// largest number and all beyond it.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace redline::ops {

struct Fp8Count {
  std::uint64_t saturated = 0;  // codes of the largest number, of either sign
  std::uint64_t zeros = 0;
  std::uint64_t not_finite = 0;
  std::uint64_t largest = 0;  // magnitude as a code: 0 to 0x7F

  void add(const Fp8Count& other) {
    saturated += other.saturated;
    zeros += other.zeros;
    not_finite += other.not_finite;
    largest = largest > other.largest ? largest : other.largest;
  }
};

template <class T>
struct CountFp8 {
  static constexpr std::string_view kName = "count_fp8";
  T copy;   // any shape of a multiple of 16 elements, e4m3 or e5m2
  T count;  // Fp8Count  +=

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", copy, Access::read));
    return CountFp8<U>{f("copy", copy, Access::read), f("count", count, Access::update)};
  }
};

}  // namespace redline::ops
