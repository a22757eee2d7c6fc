// Functions for inner loops: exp and sigmoid that become vector code inside `omp simd` loops (no branches, no calls,
// no tables), and sums and maxima in several lanes. For single values the standard library is as good.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace redline::ops::cpu {

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; relative error below 2e-7. Results under 2^-125 are 0,
// overflow is infinity, NaN stays NaN.
inline float exp(float x) {
  // Clamped as integers, one instruction each; as floats GCC turns the two comparisons into a dozen for NaN's sake.
  // Among positive floats the bits order as signed integers, among negative ones, downwards, as unsigned.
  const std::int32_t capped = std::min(std::bit_cast<std::int32_t>(x), std::bit_cast<std::int32_t>(89.0f));
  const std::uint32_t clamped = std::min(static_cast<std::uint32_t>(capped), std::bit_cast<std::uint32_t>(-87.3f));
  const float bounded = std::bit_cast<float>(clamped);

  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  constexpr float kLn2High = 0x1.63p-1f, kLn2Low = -2.12194440e-4f;
  const float shifted = bounded * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * kLn2High) - n * kLn2Low, r2 = r * r;
  const float low = 5.0000001201e-1f + r * 1.6666665459e-1f;
  const float middle = 4.1665795894e-2f + r * 8.3334519073e-3f;
  const float high = 1.3981999507e-3f + r * 1.9875691500e-4f;
  const float p = ((high * r2 + middle) * r2 + low) * r2 + r + 1.0f;

  // 2^(n - 1) and a factor of 2, since 2^128 is no float though exp(88.7) is. At n = -126, the least there is, it is 0.
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) << 23) + (126u << 23);
  const float result = p * 2.0f * std::bit_cast<float>(power);
  return x == x ? result : x;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// Running sums or maxima kept side by side: one alone would wait for its own last addition, 4 cycles for 4 elements.
// (Four scalar sums over the four quarters are slower still: GCC gathers their terms into one vector.)
inline constexpr std::int64_t kLanes = 16;

// The sum of term(j) for j in [0, n), every term made once.
template <class Term>
inline float lane_sum(std::int64_t n, const Term& term) {
  float lanes[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
#pragma omp simd
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += term(j + l);
  }
  for (std::int64_t l = 0; j + l < n; ++l) lanes[l] += term(j + l);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

// The largest of x[0..n); -infinity of none. A NaN may be passed over.
inline float lane_max(std::int64_t n, const float* x) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
#pragma omp simd
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = x[j + l] > lanes[l] ? x[j + l] : lanes[l];
  }
  for (std::int64_t l = 0; j + l < n; ++l) lanes[l] = x[j + l] > lanes[l] ? x[j + l] : lanes[l];
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace redline::ops::cpu
