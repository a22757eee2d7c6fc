// What the tests of casts to eight bits share, on the CPU and on a card: numbers that are hard to cast, and entries of
// scales.
#pragma once

#include <cmath>

#include "base/small_floats.h"
#include "ops/fp8.h"
#include "testing/op_check.h"

namespace redline::testing {

inline Tensor scale_entry(Memory& memory, float scale) {
  const Tensor t = memory.zeros({ops::kScaleFloats});
  *t.as<ops::Fp8Scale>() = {.inverse = 1 / scale, .scale = scale, .next = 0, .amax = 0, .history = {}};
  return t;
}

// Every number that bf16 has, infinities and NaN among them: [256, 256].
inline Tensor every_bf16(Memory& memory) {
  const Tensor t = memory.zeros({256, 256});
  for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = f32_from_bf16(static_cast<std::uint16_t>(i));
  return t;
}

// Numbers of either sign and of any size between 2^low and 2^high, a zero now and then.
inline Tensor of_all_sizes(Memory& memory, const Shape& shape, double low, double high) {
  const Tensor t = memory.uniform(shape, low, high);
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    const float sign = i % 3 == 0 ? -1.0f : 1.0f;
    t.f32()[i] = i % 13 == 5 ? sign * 0.0f : sign * std::exp2(t.f32()[i]);
  }
  return t;
}

// Whether a byte is a cast of x; a NaN may be any.
inline bool is_cast_of(std::uint8_t byte, float x, float scale, DType dtype) {
  const Fp8Format& format = fp8_format(dtype);
  const float what = f32_from_bf16(bf16_from_f32(x)) * scale;
  return std::isnan(what) ? std::isnan(f32_from_fp8(byte, format)) : byte == fp8_from_f32(what, format);
}

}  // namespace redline::testing
