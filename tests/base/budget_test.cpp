// Measuring within a budget, by a clock that only runs of candidates move.
#include "base/budget.h"

#include <gtest/gtest.h>

namespace redline {
namespace {

struct FakeRuns {
  std::vector<double> seconds;  // of a run of each candidate
  double clock = 0;
  std::vector<int> runs = std::vector<int>(seconds.size());
  double operator()(std::size_t i) {
    ++runs[i];
    clock += seconds[i];
    return seconds[i];
  }
  Budget budget(double of) {
    return Budget(of, [this] { return clock; });
  }
};

TEST(Budget, TakesTheFastestOfShortOnes) {
  FakeRuns runs{{3e-3, 1e-3, 2e-3}};
  Budget budget = runs.budget(3);
  const TimedChoice choice = fastest_within(budget, 3, std::ref(runs));
  EXPECT_EQ(choice.fastest, 1u);
  EXPECT_EQ(choice.seconds, runs.seconds);
  EXPECT_EQ(runs.runs, (std::vector{4, 4, 2})) << "the last is far behind";
  EXPECT_NEAR(budget.spent(), runs.clock, 1e-12);
}

// Whatever a run takes, no more than one candidate goes beyond the budget, and it says which were not tried.
TEST(Budget, IsHeldAtAnyLength) {
  for (const double scale : {1e-3, 0.1, 1.0, 10.0}) {
    FakeRuns runs{{1 * scale, 2 * scale, 3 * scale}};
    Budget budget = runs.budget(3);
    for (int cases = 0; cases < 4; ++cases) fastest_within(budget, 3, std::ref(runs));
    EXPECT_LE(runs.clock, 3 + 2 * 3 * scale) << scale;
    EXPECT_EQ(budget.over(), scale >= 0.1) << scale;
  }
  FakeRuns runs{{2.0, 1.0}};
  Budget budget = runs.budget(3);
  const TimedChoice first = fastest_within(budget, 2, std::ref(runs));
  EXPECT_EQ(first.fastest, 0u);
  EXPECT_EQ(first.seconds.size(), 1u) << "the second was not tried";
  const TimedChoice second = fastest_within(budget, 2, std::ref(runs));
  EXPECT_TRUE(second.seconds.empty());
  EXPECT_EQ(second.fastest, 0u);
  EXPECT_EQ(runs.runs, (std::vector{2, 0}));
}

}  // namespace
}  // namespace redline
