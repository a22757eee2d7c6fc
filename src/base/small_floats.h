// The 8-bit floats that cards from Hopper on multiply, and bf16: conversions to and from fp32, bit by bit. Casts round
// to nearest even and saturate: numbers that are too large, infinities included, become the largest number; NaN stays
// NaN.
//   e4m3: exponents -6 to 8, no infinity, largest 448;    e5m2: exponents -14 to 15, largest 57344
// This is the reference for every kernel that casts.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace redline {

struct Fp8Format {
  int mantissa_bits;
  int min_exponent;  // of a normal number; below it the spacing stays
  float largest;
  std::uint8_t largest_bits;
  std::uint8_t nan_bits;
};
inline constexpr Fp8Format kE4m3{3, -6, 448.0f, 0x7E, 0x7F};
inline constexpr Fp8Format kE5m2{2, -14, 57344.0f, 0x7B, 0x7F};
constexpr const Fp8Format& fp8_format(DType t) { return t == DType::e5m2 ? kE5m2 : kE4m3; }

constexpr std::uint8_t fp8_from_f32(float x, const Fp8Format& f) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | f.nan_bits);
  if (magnitude >= std::bit_cast<std::uint32_t>(f.largest)) return static_cast<std::uint8_t>(sign | f.largest_bits);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  // Bits of the 24-bit significand below the last one that is kept; below the smallest normal number more go.
  const int low = 23 - f.mantissa_bits + (exponent < f.min_exponent ? f.min_exponent - exponent : 0);
  if (low > 24) return sign;  // less than half of the smallest number
  const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  std::uint32_t kept = significand >> low;
  const std::uint32_t rest = significand & ((1u << low) - 1), half = 1u << (low - 1);
  if (rest > half || (rest == half && kept % 2 == 1)) ++kept;
  // A normal number's leading bit is one step of the exponent; where rounding carries, it is one more.
  const std::uint32_t leading = 1u << f.mantissa_bits;
  const int biased = exponent < f.min_exponent ? 0 : exponent - f.min_exponent;
  const std::uint32_t code = static_cast<std::uint32_t>(biased) * leading + kept;
  return static_cast<std::uint8_t>(sign | (code > f.largest_bits ? f.largest_bits : code));
}

constexpr float f32_from_fp8(std::uint8_t bits, const Fp8Format& f) {
  const std::uint32_t magnitude = bits & 0x7Fu, leading = 1u << f.mantissa_bits;
  const float sign = bits & 0x80u ? -1.0f : 1.0f;
  if (magnitude > f.largest_bits) {
    const bool infinite = f.mantissa_bits == 2 && magnitude == 0x7C;
    return sign * std::bit_cast<float>(infinite ? 0x7F800000u : 0x7FC00000u);
  }
  const std::uint32_t exponent = magnitude / leading;
  const std::uint32_t significand = exponent == 0 ? magnitude : leading + magnitude % leading;
  const int power = f.min_exponent - f.mantissa_bits + (exponent == 0 ? 0 : static_cast<int>(exponent) - 1);
  return sign * static_cast<float>(significand) * std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
}

// All 256 numbers of a format.
constexpr std::array<float, 256> fp8_numbers(const Fp8Format& f) {
  std::array<float, 256> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = f32_from_fp8(static_cast<std::uint8_t>(i), f);
  return numbers;
}

constexpr float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// A NaN keeps the bits that fit, so that one which came from bf16 goes back to itself; one of low bits alone stays a
// NaN.
constexpr std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    const auto kept = static_cast<std::uint16_t>(bits >> 16);
    return static_cast<std::uint16_t>((kept & 0x7Fu) != 0 ? kept : kept | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace redline
