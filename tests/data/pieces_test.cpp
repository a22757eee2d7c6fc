// Pieces cover their documents, begin at multiples of a row, always have something to predict, and are found by their
// number. Every epoch is a permutation of them, each another.
#include "data/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/listed.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

TEST(Pieces, AreCutAtMultiplesOfARowAndEndWithATarget) {
  for (const std::int64_t row : {1, 2, 7, 64}) {
    for (std::int64_t length = 0; length < 200; ++length) {
      for (const bool truncate : {false, true}) {
        const auto pieces = pieces_of(Lengths{length}, {row, truncate});
        std::int64_t tokens = 0;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          EXPECT_TRUE(pieces[i].length == row || i + 1 == pieces.size());
          EXPECT_TRUE(pieces[i].length > 1 || !pieces[i].ends);
          EXPECT_EQ(pieces[i].sole, pieces.size() == 1);
          tokens += pieces[i].length;
        }
        if (length < 2) {
          EXPECT_EQ(pieces.size(), 0u);
        } else if (truncate) {
          EXPECT_EQ(tokens, std::min(row, length));
        } else {
          EXPECT_EQ(tokens, length % row == 1 || row == 1 ? length - 1 : length);
        }
      }
    }
  }
}

TEST(Pieces, AreFoundByTheirNumber) {
  Lengths short_ones(1000, 5), mixed = random_lengths(1000, 100, 1);
  mixed[70] = 100'000;
  mixed[71] = 0;
  Lengths one_long = short_ones;
  one_long[500] = 1000;
  for (const Lengths& lengths : {Lengths{1}, Lengths{9}, Lengths{100'001}, short_ones, one_long, mixed}) {
    for (const Cut cut : {Cut{16, false}, Cut{16, true}, Cut{}}) {
      const Listed source(lengths);
      const PieceNumbers numbers(source, cut);
      std::int64_t piece = 0, tokens = 0;
      for (std::size_t d = 0; d < lengths.size(); ++d) {
        tokens += lengths[d];
        for (std::int64_t i = 0; i < cut.pieces(lengths[d]); ++i, ++piece) {
          ASSERT_LT(piece, numbers.pieces());
          const PieceNumbers::Place at = numbers.at(piece);
          ASSERT_EQ(at.document, static_cast<std::int64_t>(d));
          ASSERT_EQ(at.begin, i * 16 * (i > 0));
          ASSERT_EQ(at.length, lengths[d]);
        }
      }
      EXPECT_EQ(numbers.pieces(), piece);
      EXPECT_EQ(numbers.tokens(), tokens);
    }
  }
}

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
