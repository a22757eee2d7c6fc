// Moments in fewer bytes than fp32, by the same rules on every backend.
//
// bf16, rounded at random: the part that is cut off, as a share of the last place, is the chance to go one place up, so
//   that the mean of many roundings is the number itself. The random bits follow from the seed, the step and the
//   element's place among all parameters:  words = Random(seed, kMomentStreams + step).words(place / 4);  of word
//   place % 4 the low half is the first moment's, the high half the second's.
// Codes of eight bits, in blocks of kCutBlock elements of the flat layout:  moment = scale * value of the code, where
//   scale is the largest magnitude of the block. The values are those of dynamic tree quantisation (Dettmers et al.,
//   arXiv 2110.02861): 0, 1 and seven levels between powers of ten, 1e-7 to 1; a level has twice the values of the one
//   below, each the middle of one of its equal cells. Signed ones have 1 to 64 values a level and sign, unsigned ones 2
//   to 128.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/random.h"
#include "base/shards.h"
#include "base/small_floats.h"

namespace redline::optim {

inline constexpr std::uint64_t kMomentStreams = std::uint64_t{1} << 63;  // no other stream of a seed is up there
inline constexpr std::int64_t kRoundedAtOnce = 4;                        // elements whose bits one draw gives

// `bits`: 16 random ones. An infinite value or NaN stays so.
constexpr std::uint16_t bf16_at_random(float value, std::uint32_t bits) {
  const auto whole = std::bit_cast<std::uint32_t>(value);
  if ((whole & 0x7F800000u) == 0x7F800000u) return bf16_from_f32(value);
  return static_cast<std::uint16_t>((whole + bits) >> 16);
}
constexpr std::uint32_t first_bits(std::uint32_t word) { return word & 0xFFFFu; }
constexpr std::uint32_t second_bits(std::uint32_t word) { return word >> 16; }

// The two maps: signed for first moments, unsigned for second ones.
inline constexpr int kLevels = 9;  // 0: nothing but zero; 1 to 7: between powers of ten; 8: nothing but one
struct DynamicMap {
  std::array<float, 256> values{};     // by code: rising, signed ones from code 129 (-127) over 0 to 128
  std::array<float, kLevels> edges{};  // above edges[l] a magnitude is at least of level l: the middle between levels
  std::array<float, kLevels> low{}, cells{};  // where a level begins, and its cells for each unit of magnitude
};

// Code 0 is zero in both maps: so memory begins, between parameters too, which no file holds. Codes of negative numbers
// count down from 256, so many of them.
inline constexpr int kMostNegative = 127;

// The first value of a level, counting magnitudes from 0 (signed) or from 1 (unsigned). Below 8 a level has as many.
constexpr int first_of_level(int level, bool with_sign) { return (1 << level) >> (with_sign ? 1 : 0); }

constexpr DynamicMap dynamic_map(bool with_sign) {
  DynamicMap map;
  const auto put = [&](int magnitude, double value) {
    if (!with_sign) {
      map.values[static_cast<std::size_t>(magnitude - 1)] = static_cast<float>(value);
      return;
    }
    map.values[static_cast<std::size_t>(magnitude)] = static_cast<float>(value);
    if (magnitude > 0 && magnitude <= kMostNegative)
      map.values[static_cast<std::size_t>(256 - magnitude)] = static_cast<float>(-value);
  };
  put(with_sign ? 0 : 1, 0.0);
  double below = 0, low = 1e-7;
  for (int level = 1; level < kLevels; ++level, low *= 10) {
    const auto l = static_cast<std::size_t>(level);
    const int first = first_of_level(level, with_sign), count = level == kLevels - 1 ? 1 : first;
    const double width = level == kLevels - 1 ? 0 : 9 * low / count, begin = level == kLevels - 1 ? 1 : low;
    for (int i = 0; i < count; ++i) put(first + i, begin + (i + 0.5) * width);
    // A second moment that is not zero stays so: all above zero is at least the smallest value.
    map.edges[l] = level == 1 && !with_sign ? 0.0f : static_cast<float>((below + begin + 0.5 * width) / 2);
    map.low[l] = static_cast<float>(begin);
    map.cells[l] = width > 0 ? static_cast<float>(1 / width) : 0.0f;
    below = begin + (count - 0.5) * width;
  }
  return map;
}
inline constexpr DynamicMap kSignedMap = dynamic_map(true), kUnsignedMap = dynamic_map(false);

// The nearest value to a magnitude, x >= 0, counted as first_of_level does; all that is not below one is one. In the
// middle between two values of a level it is the upper one, between two levels the lower; within rounding of fp32 a
// middle is either's. A difference and a product of it leave a compiler nothing to contract: every backend has the same
// bits.
template <bool kSigned>
constexpr int nearest_magnitude(float x, const DynamicMap& map) {
  x = x < 1.0f ? x : 1.0f;
  int level = 0;
  for (std::size_t l = 1; l < kLevels; ++l) level += x > map.edges[l] ? 1 : 0;
  const auto l = static_cast<std::size_t>(level);
  const int cell = static_cast<int>((x - map.low[l]) * map.cells[l]);
  const int magnitude = first_of_level(level, kSigned) + cell, last = first_of_level(level + 1, kSigned) - 1;
  return magnitude < last ? magnitude : last;
}
constexpr std::uint8_t signed_code(float x, const DynamicMap& map) {
  const int magnitude = nearest_magnitude<true>(x < 0 ? -x : x, map);
  return static_cast<std::uint8_t>(x < 0 ? -(magnitude < kMostNegative ? magnitude : kMostNegative) : magnitude);
}
constexpr std::uint8_t unsigned_code(float x, const DynamicMap& map) {
  return static_cast<std::uint8_t>(nearest_magnitude<false>(x, map) - 1);
}

// The divisor of the moments of a block: their largest magnitude, such that its inverse is finite and that the
// smallest value times it is not zero. An infinite moment becomes the largest number.
constexpr float scale_of_block(float largest) {
  if (!(largest > 0.0f)) return 0.0f;
  const float least = std::numeric_limits<float>::min(), most = std::numeric_limits<float>::max();
  return largest < least ? least : largest > most ? most : largest;
}
constexpr float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// A second moment in units of its scale; one that is not zero does not become zero by the product either.
constexpr float above_zero(float scaled, float moment) {
  const float least = std::numeric_limits<float>::min();
  return moment > 0.0f && !(scaled > least) ? least : scaled;
}

}  // namespace redline::optim
