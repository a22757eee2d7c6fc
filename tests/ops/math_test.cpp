// The vector exp and the lane sums against the standard library in double.
#include "ops/cpu/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace redline::ops::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> exp_of(const std::vector<float>& x) {
  std::vector<float> y(x.size());
#pragma omp simd
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = exp(x[i]);
  return y;
}

TEST(Exp, IsWithinTwoUlpWhereTheResultIsNormal) {
  std::vector<float> x;
  for (float v = -86.6f; v < 88.72f; v += 1.7e-4f) x.push_back(v);
  for (float v = 1e-10f; v < 1e-2f; v *= 1.01f) x.insert(x.end(), {v, -v});
  const std::vector<float> y = exp_of(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - want) / want);
  }
  EXPECT_LT(worst, 2e-7);
}

TEST(Exp, HasTheRightEnds) {
  const std::vector<float> y = exp_of({0.0f, -0.0f, -kInfinity, kInfinity, kNan, -kNan, 89.0f, 1e30f, -1e30f, -88.0f,
                                       -104.0f, std::numeric_limits<float>::denorm_min()});
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5]));
  EXPECT_EQ(y[6], kInfinity);
  EXPECT_EQ(y[7], kInfinity);
  EXPECT_EQ(y[8], 0.0f);
  EXPECT_EQ(y[9], 0.0f);
  EXPECT_EQ(y[10], 0.0f);
  EXPECT_EQ(y[11], 1.0f);
  // Between the smallest result kept and 0 there is nothing wilder than either.
  for (float v = -86.0f; v > -104.0f; v -= 0.01f) EXPECT_LE(exp(v), 1.1 * std::exp(static_cast<double>(v)));
}

TEST(Sigmoid, IsAccurateAndBounded) {
  for (float v = -80.0f; v <= 80.0f; v += 0.013f) {
    const double want = 1 / (1 + std::exp(-static_cast<double>(v)));
    EXPECT_NEAR(sigmoid(v), want, 3e-7 * want);
  }
  EXPECT_EQ(sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(sigmoid(kInfinity), 1.0f);
}

TEST(Lanes, SumAndLargestOfAnyLength) {
  for (std::int64_t n : {0, 1, 2, 15, 16, 17, 31, 33, 100}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    double sum = 0;
    float largest = -kInfinity;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>((i * 7 + 3) % 11) - 20.0f;
      sum += static_cast<double>(x[i]);
      largest = std::max(largest, x[i]);
    }
    EXPECT_EQ(lane_sum(n, [&](std::int64_t j) { return x[static_cast<std::size_t>(j)]; }), static_cast<float>(sum));
    EXPECT_EQ(lane_max(n, x.data()), largest);
  }
}

}  // namespace
}  // namespace redline::ops::cpu
