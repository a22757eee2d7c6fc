// Casts to eight bits and to bf16: the nearest number, ties to the even one, and saturation, against a search over all
// numbers.
#include "base/small_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace redline {
namespace {

class Fp8Test : public ::testing::TestWithParam<DType> {
 protected:
  const Fp8Format& format() const { return fp8_format(GetParam()); }

  // The nearest of all finite numbers; of two that are as near, the one whose last bit is 0.
  std::uint8_t nearest(float x) const {
    int best = 0;
    double least = INFINITY;
    for (int code = 0; code <= format().largest_bits; ++code) {
      const double distance = std::abs(std::abs(static_cast<double>(x)) -
                                       static_cast<double>(f32_from_fp8(static_cast<std::uint8_t>(code), format())));
      if (distance > least || (distance == least && code % 2 == 1)) continue;
      best = code;
      least = distance;
    }
    return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
  }
};

TEST_P(Fp8Test, EveryNumberComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const float number = f32_from_fp8(bits, format());
    if ((bits & 0x7F) <= format().largest_bits)
      EXPECT_EQ(fp8_from_f32(number, format()), bits) << code;
    else
      EXPECT_FALSE(std::isfinite(number)) << code;
  }
}

TEST_P(Fp8Test, RoundsToTheNearest) {
  const Random random(1, 0);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double exponent = -22 + 40 * random.uniform(2 * i), sign = i % 2 ? -1 : 1;
    const auto x = static_cast<float>(sign * std::exp2(exponent));
    ASSERT_EQ(fp8_from_f32(x, format()), nearest(x)) << x;
  }
}

TEST_P(Fp8Test, TiesGoToTheEvenNumber) {
  for (int code = 0; code < format().largest_bits; ++code) {
    const float below = f32_from_fp8(static_cast<std::uint8_t>(code), format());
    const float above = f32_from_fp8(static_cast<std::uint8_t>(code + 1), format()), middle = (below + above) / 2;
    ASSERT_EQ(fp8_from_f32(middle, format()), code + code % 2) << middle;
    ASSERT_EQ(fp8_from_f32(std::nextafter(middle, 0.0f), format()), code) << middle;
    ASSERT_EQ(fp8_from_f32(std::nextafter(middle, INFINITY), format()), code + 1) << middle;
  }
}

TEST_P(Fp8Test, SaturatesAndKeepsNan) {
  for (const float x : {format().largest, 2 * format().largest, std::numeric_limits<float>::max(), INFINITY}) {
    EXPECT_EQ(fp8_from_f32(x, format()), format().largest_bits) << x;
    EXPECT_EQ(fp8_from_f32(-x, format()), format().largest_bits | 0x80) << x;
  }
  EXPECT_TRUE(std::isnan(f32_from_fp8(fp8_from_f32(NAN, format()), format())));
  EXPECT_EQ(fp8_from_f32(0.0f, format()), 0);
  EXPECT_EQ(fp8_from_f32(-1e-30f, format()), 0x80);
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8Test, ::testing::Values(DType::e4m3, DType::e5m2),
                         [](const auto& of) { return std::string(name_of(of.param)); });

TEST(Fp8, HasTheNumbersOfItsFormats) {
  EXPECT_EQ(f32_from_fp8(0x38, kE4m3), 1.0f);
  EXPECT_EQ(f32_from_fp8(0x01, kE4m3), 0x1p-9f);
  EXPECT_EQ(f32_from_fp8(0x7E, kE4m3), 448.0f);
  EXPECT_EQ(f32_from_fp8(0x3C, kE5m2), 1.0f);
  EXPECT_EQ(f32_from_fp8(0x01, kE5m2), 0x1p-16f);
  EXPECT_EQ(f32_from_fp8(0x7B, kE5m2), 57344.0f);
}

}  // namespace
}  // namespace redline
