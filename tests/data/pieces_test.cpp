// Pieces cover their documents, begin at multiples of a row, always have something to predict, and are found by their
// number.
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

}  // namespace
}  // namespace redline::data
