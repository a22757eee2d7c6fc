// A thinned curve keeps its ends and its extremes; a mean follows what it is the mean of.
#include "report/curves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace redline::report {
namespace {

TEST(Thinned, KeepsEndsAndEverySpike) {
  std::vector<double> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i) * 1e-3);
  values[54'321] = 100;
  values[54'322] = -100;
  const std::vector<std::size_t> kept = thinned(values, 1000);
  EXPECT_LE(kept.size(), 1000u);
  EXPECT_GE(kept.size(), 900u);
  EXPECT_TRUE(std::ranges::is_sorted(kept));
  EXPECT_EQ(std::ranges::adjacent_find(kept), kept.end());
  EXPECT_EQ(kept.front(), 0u);
  EXPECT_EQ(kept.back(), values.size() - 1);
  for (const std::size_t spike : {54'321u, 54'322u}) EXPECT_TRUE(std::ranges::binary_search(kept, spike)) << spike;
}

TEST(Thinned, FewStayAllAndUnknownOnesGo) {
  EXPECT_EQ(thinned({1, NAN, 3}, 10), (std::vector<std::size_t>{0, 2}));
  EXPECT_TRUE(thinned({}, 10).empty());
  EXPECT_TRUE(thinned({NAN, NAN}, 10).empty());
  for (std::size_t n = 1; n < 200; ++n)
    for (const std::size_t most : {4u, 7u, 50u})
      EXPECT_LE(thinned(std::vector<double>(n, 1.0), most).size(), std::max<std::size_t>(most, 4)) << n << " " << most;
}

TEST(Smoothed, AConstantStaysAndNoiseShrinks) {
  for (const double v : smoothed(std::vector<double>(50, 3.0), 9)) EXPECT_DOUBLE_EQ(v, 3.0);
  std::vector<double> noise(1000);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = i % 2 ? 1 : -1;
  const std::vector<double> mean = smoothed(noise, 100);
  for (std::size_t i = 400; i < 1000; ++i) EXPECT_LT(std::fabs(mean[i]), 0.03) << i;
  EXPECT_EQ(mean[0], noise[0]) << "the start is not lifted by what follows";
}

TEST(Smoothed, UnknownValuesStayUnknownAndTouchNoOther) {
  const std::vector<double> mean = smoothed({1, NAN, 1, 1, 1, 1, 1, 1, 1}, 4);
  EXPECT_TRUE(std::isnan(mean[1]));
  EXPECT_DOUBLE_EQ(mean[2], 1);
  EXPECT_DOUBLE_EQ(mean[8], 1);
}

}  // namespace
}  // namespace redline::report
