// The edges that waste least are those that trying all of them finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "data/statistics.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

BucketEdges best(const Lengths& pieces, std::int64_t buckets, const BatchShape& shape) {
  std::map<std::int64_t, std::int64_t> counts;
  for (const std::int64_t piece : pieces) ++counts[piece];
  return best_bucket_edges(counts, buckets, shape);
}

double slots_of(const Lengths& pieces, const Lengths& edges, const BatchShape& shape) {
  double slots = 0;
  for (const std::int64_t length : pieces) slots += slots_per_piece(shape, *std::ranges::lower_bound(edges, length));
  return slots;
}

// Every set of at most `buckets` distinct lengths that ends with the longest.
double least_by_trying(const Lengths& pieces, std::int64_t buckets, const BatchShape& shape) {
  const std::set<std::int64_t> set(pieces.begin(), pieces.end());
  const Lengths distinct(set.begin(), set.end());
  double least = 1e300;
  for (std::uint32_t chosen = 0; chosen < 1u << (distinct.size() - 1); ++chosen) {
    Lengths edges;
    for (std::size_t i = 0; i + 1 < distinct.size(); ++i)
      if (chosen >> i & 1) edges.push_back(distinct[i]);
    edges.push_back(distinct.back());
    if (static_cast<std::int64_t>(edges.size()) <= buckets) least = std::min(least, slots_of(pieces, edges, shape));
  }
  return least;
}

TEST(BucketEdges, APieceCostsItsShareOfTheBatch) {
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 1024), 1024);
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 256), 256);
  EXPECT_EQ(slots_per_piece({8, 1024, 32}, 300), 8192.0 / 27);  // 27 pieces of 300 in a batch of 8192
  EXPECT_EQ(slots_per_piece({8, 1024, 4}, 16), 256);            // max_segments: no more than 32 pieces
}

TEST(BucketEdges, ByHand) {
  const BatchShape shape{1, 64, 64};
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 4, shape).edges, (Lengths{8, 16, 32}));
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 4, shape).slots, 64);
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 2, shape).edges, (Lengths{8, 32}));  // 80; {16, 32} is 80 as well
  EXPECT_EQ(best(Lengths{8, 8, 16, 32}, 1, shape).edges, (Lengths{32}));
  EXPECT_EQ(best(Lengths{5}, 9, shape).edges, (Lengths{5}));
  // A longer edge that costs no more takes its place: eight pieces a batch either way.
  EXPECT_EQ(best(Lengths{1000, 1010}, 2, {8, 1024, 32}).edges, (Lengths{1024}));
}

TEST(BucketEdges, AsGoodAsTryingAll) {
  const Random random(3, 0);
  std::uint64_t draws = 0;
  for (int round = 0; round < 60; ++round) {
    const BatchShape shape{1 + round % 5, 100, round % 3 == 0 ? 2 : 50};
    Lengths values, pieces;
    for (int i = 0; i < 11; ++i) values.push_back(static_cast<std::int64_t>(1 + random.below(draws++, 100)));
    for (int i = 0; i < 60; ++i) pieces.push_back(values[random.below(draws++, values.size())]);
    for (std::int64_t buckets = 1; buckets <= 6; ++buckets) {
      const BucketEdges found = best(pieces, buckets, shape);
      ASSERT_LE(static_cast<std::int64_t>(found.edges.size()), buckets);
      ASSERT_NEAR(found.slots, least_by_trying(pieces, buckets, shape), 1e-9 * found.slots);
      ASSERT_NEAR(found.slots, slots_of(pieces, found.edges, shape), 1e-9 * found.slots);
    }
  }
}

TEST(BucketEdges, ManyDistinctLengths) {
  Lengths pieces(131072);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i] = static_cast<std::int64_t>(i) + 1;
  const BucketEdges found = best(pieces, 4, {1, 131072, 131072});
  ASSERT_EQ(found.edges.size(), 4u);  // of a flat spread, about equal steps
  EXPECT_LE(found.slots, slots_of(pieces, {32768, 65536, 98304, 131072}, {1, 131072, 131072}));
}

}  // namespace
}  // namespace redline::data
