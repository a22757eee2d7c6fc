// Figures carry their units and stay short at any size.
#include "report/figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace redline::report {
namespace {

TEST(Figures, BytesInBinaryUnits) {
  EXPECT_EQ(bytes(0), "0 B");
  EXPECT_EQ(bytes(1023), "1023 B");
  EXPECT_EQ(bytes(17), "17 B");
  EXPECT_EQ(bytes(312.0 * (1 << 20)), "312 MiB");
  EXPECT_EQ(bytes(1.5 * (1 << 30)), "1.50 GiB");
}

TEST(Figures, Durations) {
  EXPECT_EQ(duration(0), "0 s");
  EXPECT_EQ(duration(0.34), "340 ms");
  EXPECT_EQ(duration(3.42), "3.4 s");
  EXPECT_EQ(duration(42), "42 s");
  EXPECT_EQ(duration(59.7), "1m 00s");
  EXPECT_EQ(duration(80), "1m 20s");
  EXPECT_EQ(duration(3 * 3600 + 5 * 60), "3h 05m");
  EXPECT_EQ(duration(2 * 86400 + 4 * 3600), "2d 04h");
  EXPECT_EQ(duration(1e30), "years");
  EXPECT_EQ(duration(NAN), "?");
  EXPECT_EQ(duration(-1), "?");
}

TEST(Figures, CountsAndRates) {
  EXPECT_EQ(count(950), "950");
  EXPECT_EQ(count(4'934'912), "4.93 M");
  EXPECT_EQ(count(1.36e9), "1.36 B");
  EXPECT_EQ(count(999'999), "1.00 M");
  EXPECT_EQ(token_rate(3100), "3.10k tok/s");
  EXPECT_EQ(flop_rate(51.2e9), "51.2 GFLOP/s");
  EXPECT_EQ(flops(3.214e15), "3.21 PFLOP");
  EXPECT_EQ(flops(8.16e19), "81.6 EFLOP");
  EXPECT_EQ(percent(0.4821), "48.2%");
}

TEST(Figures, Energy) {
  EXPECT_EQ(energy(0), "0.00 Wh");
  EXPECT_EQ(energy(15'000), "4.17 Wh");
  EXPECT_EQ(energy(36'000), "0.01 kWh");
  EXPECT_EQ(energy(1.512e6), "0.42 kWh");
  EXPECT_EQ(energy(4.716e9), "1.31 MWh");
  EXPECT_EQ(joules(1.3), "1.30 J");
  EXPECT_EQ(joules(0.00042), "420 µJ");
  EXPECT_EQ(joules(0.0421), "42.1 mJ");
}

TEST(Figures, WholeNumbersInGroups) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(4'012'345), "4,012,345");
  EXPECT_EQ(grouped(-100), "-100");
  EXPECT_EQ(grouped(-1'000'000), "-1,000,000");
}

TEST(Figures, StayShortAtAnySize) {
  const double most = std::numeric_limits<double>::max();
  for (const double v : {0.0, 1e-300, 999.5, 1e5, 1e18, most, -most, double{INFINITY}, double{NAN}}) {
    EXPECT_LE(bytes(v).size(), 16u) << v;
    EXPECT_LE(count(v).size(), 16u) << v;
    EXPECT_LE(token_rate(v).size(), 20u) << v;
    EXPECT_LE(flop_rate(v).size(), 20u) << v;
    EXPECT_LE(flops(v).size(), 20u) << v;
    EXPECT_LE(duration(v).size(), 9u) << v;
    EXPECT_LE(plain(v, 4).size(), 12u) << v;
    EXPECT_LE(energy(v).size(), 16u) << v;
    EXPECT_LE(joules(v).size(), 16u) << v;
  }
}

}  // namespace
}  // namespace redline::report
