// A block's largest magnitude, then its moments in units of it, then their codes: three loops, so that no product is
// contracted with the difference that it goes into.
#include "optim/cpu/moment_codes.h"

#include <algorithm>
#include <cmath>

namespace redline::optim::cpu {
namespace {

float scale_of(const float* moments, std::int64_t count) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(moments[i]));
  return scale_of_block(largest);
}

}  // namespace

void decode_moments(const DynamicMap& map, const std::uint8_t* codes, std::int64_t count, float scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = map.values[codes[i]] * scale;
}

float encode_first_moments(const float* moments, std::int64_t count, std::uint8_t* codes) {
  const float scale = scale_of(moments, count), inverse = inverse_of(scale);
  float scaled[kCutBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = moments[i] * inverse;
  for (std::int64_t i = 0; i < count; ++i) codes[i] = signed_code(scaled[i], kSignedMap);
  return scale;
}

float encode_second_moments(const float* moments, std::int64_t count, std::uint8_t* codes) {
  const float scale = scale_of(moments, count), inverse = inverse_of(scale);
  float scaled[kCutBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = above_zero(moments[i] * inverse, moments[i]);
  for (std::int64_t i = 0; i < count; ++i) codes[i] = unsigned_code(scaled[i], kUnsignedMap);
  return scale;
}

}  // namespace redline::optim::cpu
