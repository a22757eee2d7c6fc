// From lengths alone: every token of every document is placed once or counted as dropped, documents that fit stay whole,
// and the fill is what each way of packing promises.
#include "data/packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "data/ping.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

constexpr Packing kAll[] = {Packing::pad, Packing::bucket, Packing::pack, Packing::stream};

Lengths random_lengths(std::size_t count, std::uint64_t most, std::uint64_t seed) {
  Lengths lengths;
  const Random random(seed, 0);
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(static_cast<std::int64_t>(1 + random.below(i, most)));
  return lengths;
}

const Lengths& ping_lengths() {
  static const Lengths lengths = [] {
    const auto ping = make_ping(0, 0, PingPart::training);
    std::vector<std::int32_t> tokens;
    Lengths all;
    for (std::int64_t i = 0; i < 20000; ++i) {
      ping->read(i, tokens);
      all.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    return all;
  }();
  return lengths;
}

using Pieces = std::vector<PlacedPiece>;

// All batches that documents of these lengths make.
std::vector<Pieces> batches_of(const PackerSettings& settings, const Lengths& lengths) {
  Packer packer(settings);
  std::vector<Pieces> batches(1);
  std::size_t next = 0;
  for (;;) {
    while (packer.wants() && next < lengths.size()) {
      packer.offer(static_cast<std::int64_t>(next), lengths[next]);
      ++next;
    }
    EXPECT_LE(packer.waiting().size(), packer.lookahead());
    if (const auto piece = packer.place())
      batches.back().push_back(*piece);
    else if (batches.back().empty())
      break;
    else
      batches.emplace_back();
  }
  EXPECT_TRUE(packer.waiting().empty());
  EXPECT_EQ(next, lengths.size());
  batches.pop_back();
  return batches;
}

std::int64_t tokens_of(const Pieces& pieces) {
  std::int64_t tokens = 0;
  for (const PlacedPiece& p : pieces) tokens += p.length;
  return tokens;
}

// Share of the tokens of all batches but the last few, which end an epoch.
double fill(const PackerSettings& settings, const Lengths& lengths, std::size_t endings = 1) {
  auto batches = batches_of(settings, lengths);
  batches.resize(batches.size() - endings);
  std::int64_t tokens = 0;
  for (const Pieces& batch : batches) tokens += tokens_of(batch);
  return static_cast<double>(tokens) / static_cast<double>(settings.shape.tokens()) /
         static_cast<double>(batches.size());
}

void expect_all_placed(const PackerSettings& settings, const Lengths& lengths) {
  const BatchShape& shape = settings.shape;
  std::map<std::int64_t, std::int64_t> at;
  std::size_t finished = 0;
  for (const Pieces& batch : batches_of(settings, lengths)) {
    ASSERT_LE(tokens_of(batch), shape.tokens());
    ASSERT_LE(static_cast<std::int64_t>(batch.size()), shape.documents());
    if (settings.packing == Packing::pad) {
      ASSERT_LE(static_cast<std::int64_t>(batch.size()), shape.rows);
    }
    for (const PlacedPiece& p : batch) {
      const std::int64_t length = lengths[static_cast<std::size_t>(p.document)];
      ASSERT_EQ(p.begin, at[p.document]);
      ASSERT_GT(p.length, 0);
      ASSERT_LE(p.length, shape.seq_len);
      if (length <= shape.seq_len && settings.packing != Packing::stream) {
        ASSERT_EQ(p.length, length);
      }
      at[p.document] += p.length;
      ASSERT_EQ(p.last, at[p.document] + p.dropped == length);
      finished += p.last;
      if (!settings.truncate || length <= shape.seq_len) {
        ASSERT_EQ(p.dropped, 0);
      }
      if (settings.truncate) {
        ASSERT_LE(p.begin + p.length, shape.seq_len);
      }
    }
  }
  EXPECT_EQ(finished, lengths.size());
}

TEST(Packer, EveryTokenIsPlacedOnceOrCountedAsDropped) {
  for (const Packing packing : kAll) {
    for (const bool truncate : {false, true}) {
      for (const BatchShape shape : {BatchShape{1, 8, 4}, {2, 64, 1}, {4, 32, 3}, {3, 1, 1}, {2, 128, 200}}) {
        const PackerSettings settings{shape, packing, truncate, {16, 40}};
        for (const Lengths& lengths : {Lengths{1},
                                       {8},
                                       {9},
                                       {1, 2, 8, 9, 16, 17, 1, 1, 1, 100},
                                       random_lengths(500, 60, 1),
                                       random_lengths(300, 300, 2)}) {
          expect_all_placed(settings, lengths);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Packer, PingFillsAsPromised) {
  for (const std::int64_t rows : {1, 2, 8, 64}) {
    const BatchShape shape{rows, 1024, 32};
    EXPECT_GE(fill({shape, Packing::pack, false, {}}, ping_lengths()), 0.97) << rows;
    EXPECT_GE(fill({shape, Packing::stream, false, {}}, ping_lengths()), 0.999) << rows;
    const double pad = fill({shape, Packing::pad, false, {}}, ping_lengths());
    EXPECT_GT(pad, 0.18);
    EXPECT_LT(pad, 0.25);
    EXPECT_GT(fill({shape, Packing::bucket, false, {}}, ping_lengths(), 5), 0.65) << rows;
  }
}

TEST(Packer, BucketsHoldSimilarLengths) {
  const BatchShape shape{8, 256, 32};
  const auto batches =
      batches_of({shape, Packing::bucket, false, {200, 32, 96, 200, 999}}, random_lengths(3000, 500, 4));
  const Lengths edges = {0, 32, 96, 200, 256};
  for (const Pieces& batch : batches) {
    const auto edge = std::ranges::lower_bound(edges, batch[0].length);
    for (const PlacedPiece& p : batch) {
      EXPECT_LE(p.length, *edge);
      EXPECT_GT(p.length, *(edge - 1));
    }
    EXPECT_LE(static_cast<std::int64_t>(batch.size()), shape.tokens() / *edge);
  }
}

TEST(Packer, DefaultBucketsArePowersOfTwoUpToARow) {
  EXPECT_EQ(default_buckets(1024), (Lengths{64, 128, 256, 512, 1024}));
  EXPECT_EQ(default_buckets(300), (Lengths{64, 128, 256, 300}));
  EXPECT_EQ(default_buckets(64), (Lengths{64}));
  EXPECT_EQ(default_buckets(5), (Lengths{5}));
}

TEST(Packer, AStreamKeepsTheOrderAndCutsOnlyAtTheEndsOfBatchesAndRows) {
  const Lengths lengths = random_lengths(200, 40, 6);
  const BatchShape shape{2, 32, 64};
  const auto batches = batches_of({shape, Packing::stream, false, {}}, lengths);
  std::int64_t document = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    if (b + 1 < batches.size()) {
      EXPECT_EQ(tokens_of(batches[b]), shape.tokens());
    }
    for (const PlacedPiece& p : batches[b]) {
      EXPECT_EQ(p.document, document);
      const bool cut_by_batch = &p == &batches[b].back();
      EXPECT_TRUE(p.last || cut_by_batch || p.length == shape.seq_len);
      document += p.last;
    }
  }
}

TEST(Packer, WhatWaitsCanBeOfferedToAnother) {
  for (const Packing packing : kAll) {
    const PackerSettings settings{{2, 64, 16}, packing, false, {}};
    const Lengths lengths = random_lengths(1000, 150, 8);
    Packer packer(settings);
    std::size_t next = 0;
    const auto batch = [&](Packer& from, std::size_t& at) {
      Pieces pieces;
      for (;;) {
        while (from.wants() && at < lengths.size()) {
          from.offer(static_cast<std::int64_t>(at), lengths[at]);
          ++at;
        }
        const auto piece = from.place();
        if (!piece) return pieces;
        pieces.push_back(*piece);
      }
    };
    for (int round = 0; round < 50; ++round) {
      Packer other(settings);
      for (const Packer::Waiting& w : packer.waiting()) other.offer(w.document, w.length, w.begin);
      std::size_t at = next;
      const Pieces mine = batch(packer, next), theirs = batch(other, at);
      ASSERT_EQ(mine.size(), theirs.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_EQ(mine[i].document, theirs[i].document);
        EXPECT_EQ(mine[i].begin, theirs[i].begin);
        EXPECT_EQ(mine[i].length, theirs[i].length);
      }
    }
  }
}

TEST(Packer, AnEmptyDocumentIsOurOwnMistake) {
  Packer packer({{1, 8, 4}, Packing::pack, false, {}});
  EXPECT_THROW(packer.offer(0, 0), MachineError);
  EXPECT_THROW(packer.offer(0, 5, 5), MachineError);
}

}  // namespace
}  // namespace redline::data
