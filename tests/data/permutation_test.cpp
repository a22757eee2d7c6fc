// The order of pieces: every epoch a permutation, each epoch another.
#include <gtest/gtest.h>

#include <vector>

#include "data/pieces.h"

namespace redline::data {
namespace {

std::vector<std::int64_t> epoch_of(std::int64_t epoch, std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < n; ++i) order.push_back(shuffled_at(epoch * n + i, n, seed));
  return order;
}

TEST(Order, EveryEpochIsAPermutation) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097}) {
    for (const std::int64_t epoch : {0, 1, 2, 1000000}) {
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (const std::int64_t d : epoch_of(epoch, n, 3)) {
        ASSERT_TRUE(d >= 0 && d < n);
        EXPECT_FALSE(seen[static_cast<std::size_t>(d)]);
        seen[static_cast<std::size_t>(d)] = true;
      }
    }
  }
}

TEST(Order, EpochsAndSeedsDiffer) {
  EXPECT_NE(epoch_of(0, 100, 0), epoch_of(1, 100, 0));
  EXPECT_NE(epoch_of(0, 100, 0), epoch_of(0, 100, 1));
  EXPECT_EQ(epoch_of(5, 100, 7), epoch_of(5, 100, 7));
}

TEST(Order, PositionsAreSpread) {
  // The mean distance of |document - position| in a random permutation of n is n / 3.
  const std::int64_t n = 3000;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::abs(shuffled_at(i, n, 1) - i));
  EXPECT_NEAR(sum / static_cast<double>(n) / (static_cast<double>(n) / 3), 1.0, 0.05);
}

}  // namespace
}  // namespace redline::data
