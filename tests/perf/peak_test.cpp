// What a measured peak says of itself where neighbours share the machine, and what is said where it has changed.
#include "perf/peak.h"

#include <gtest/gtest.h>

#include "testing/says.h"

namespace redline::perf {
namespace {

using redline::testing::says;

TEST(Peak, OfAQuietMachineIsItsBestProduct) {
  const Peak peak = peak_of({{"small", {40e9, 41e9, 39e9}}, {"large", {98e9, 100e9, 95e9}}, {"none", {}}});
  EXPECT_EQ(peak.flops, 100e9);
  EXPECT_EQ(peak.usual, 98e9);
  EXPECT_EQ(peak.source, "measured: large");
}

// One product had the machine to itself, and the others shared it: a share of that peak is no measure of a step.
TEST(Peak, OfABusyMachineIsCalledNoisy) {
  const Peak peak = peak_of({{"large", {50e9, 52e9, 100e9, 51e9, 49e9}}});
  EXPECT_EQ(peak.flops, 100e9);
  EXPECT_TRUE(says(peak.source, {"noisy", "51%"}));
}

TEST(Peak, ThatHasChangedMakesMfuNoisy) {
  const Peak before{100e9, "measured", true, 99e9};
  Peak after = before;
  after.flops = 101e9;
  EXPECT_EQ(peaks_differ(before, after), "");
  after.flops = 200e9;
  EXPECT_TRUE(says(peaks_differ(before, after), {"noisy", "200", "100", "25%"})) << "50% of the first is 25% of this";
  after.flops = 40e9;
  EXPECT_TRUE(says(peaks_differ(before, after), {"noisy", "40", "100"}));
}

}  // namespace
}  // namespace redline::perf
