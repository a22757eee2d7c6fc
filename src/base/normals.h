// The arithmetic of standard normals in fp32, for processors and cards: Box-Muller, its logarithm, sine and cosine as
// polynomials. Every product and every sum is rounded, so that all builds draw the same bits: a file that includes this
// is compiled without contraction to fma (cmake/Rooms.cmake). The root, which is rounded everywhere, is the caller's.
#pragma once

#include <bit>
#include <cstdint>

namespace redline::box_muller {

constexpr float open_unit(std::uint32_t word) { return (static_cast<float>(word) + 0.5f) * 0x1p-32f; }

// log(u) of u = open_unit(word). With u = m 2^e, m in [2/3, 4/3), s = (m-1)/(m+1): log m = 2 (s + s^3/3 + s^5/5 + ...),
// |s| <= 0.2. Near 1, where fp32 would lose u's last bits, m - 1 is -(1 - u), which it holds.
constexpr float log_of(std::uint32_t word) {
  constexpr std::uint32_t kTwoThirds = 0x3F2AAAABu;
  const std::uint32_t shifted = std::bit_cast<std::uint32_t>(open_unit(word)) - kTwoThirds;
  const float exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007FFFFFu) + kTwoThirds);
  const bool near_one = word >= 0xC0000000u;
  const float below = near_one ? -open_unit(~word) : m - 1.0f, e = near_one ? 0.0f : exponent;
  const float s = below / (2.0f + below), z = s * s;
  const float series = 1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9 + z * (1.0f / 11)))));
  return 2.0f * s * series + 0.693147181f * e;
}

struct SinCos {
  float sine, cosine;
};
// Sine and cosine of 2 pi v, v in [0, 1]: Taylor's polynomials within an eighth of a turn of the nearest quarter.
constexpr SinCos turn(float v) {
  const auto quarter = static_cast<std::int32_t>(4.0f * v + 0.5f);
  const float a = 6.28318531f * (v - 0.25f * static_cast<float>(quarter)), z = a * a;
  const float s = a * (1.0f + z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
  const float c = 1.0f + z * (-1.0f / 2 + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320))));
  const bool odd = quarter & 1;
  const float sine = odd ? c : s, cosine = odd ? s : c;
  return {quarter & 2 ? -sine : sine, (quarter + 1) & 2 ? -cosine : cosine};
}

// Two normals of two words: `radius` is the root of squared_radius(one), and `angle` the other word.
struct Two {
  float first, second;
};
constexpr float squared_radius(std::uint32_t word) { return -2.0f * log_of(word); }
constexpr Two on_circle(float radius, std::uint32_t angle) {
  const SinCos at = turn(open_unit(angle));
  return {radius * at.cosine, radius * at.sine};
}

}  // namespace redline::box_muller
