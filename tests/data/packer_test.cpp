// From lengths alone: every token of every piece is placed once, pieces stay whole, and the fill is what each way of
// packing promises.
#include "data/packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "data/generated.h"
#include "data/listed.h"

namespace redline::data {
namespace {

using Lengths = std::vector<std::int64_t>;

const Lengths& ping_lengths() {
  static const Lengths lengths = [] {
    const auto ping = make_ping(0, 0, Part::training);
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

// All batches that these pieces make.
std::vector<Pieces> batches_of(const PackerSettings& settings, const std::vector<PieceLength>& offered) {
  Packer packer(settings);
  std::vector<Pieces> batches(1);
  std::size_t next = 0;
  for (;;) {
    while (packer.wants() && next < offered.size()) {
      packer.offer(static_cast<std::int64_t>(next), offered[next].length, offered[next].ends);
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
  EXPECT_EQ(next, offered.size());
  batches.pop_back();
  return batches;
}

// That documents of these lengths make.
std::vector<Pieces> batches_of(const PackerSettings& settings, const Lengths& lengths) {
  return batches_of(settings, pieces_of(lengths, settings.cut()));
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
  const std::vector<PieceLength> pieces = pieces_of(lengths, settings.cut());
  std::map<std::int64_t, std::int64_t> at;
  std::size_t finished = 0;
  for (const Pieces& batch : batches_of(settings, pieces)) {
    ASSERT_LE(tokens_of(batch), shape.tokens());
    ASSERT_LE(static_cast<std::int64_t>(batch.size()), shape.documents());
    if (settings.packing == Packing::pad) {
      ASSERT_LE(static_cast<std::int64_t>(batch.size()), shape.rows);
    }
    for (const PlacedPiece& p : batch) {
      const PieceLength& piece = pieces[static_cast<std::size_t>(p.piece)];
      ASSERT_EQ(p.begin, at[p.piece]);
      ASSERT_GT(p.length, 0);
      if (settings.packing != Packing::stream) {
        ASSERT_EQ(p.length, piece.length);
      }
      at[p.piece] += p.length;
      // One token more than the batch has room for is left out where it has no target.
      const std::int64_t left = piece.length - at[p.piece];
      ASSERT_EQ(p.last, left == 0 || (left == 1 && piece.ends));
      finished += p.last;
    }
  }
  EXPECT_EQ(finished, pieces.size());
}

TEST(Packer, EveryTokenIsPlacedOnce) {
  for (const Packing packing : kPackings) {
    for (const bool truncate : {false, true}) {
      for (const BatchShape shape : {BatchShape{1, 8, 4}, {2, 64, 1}, {4, 32, 3}, {3, 1, 1}, {2, 128, 200}}) {
        const PackerSettings settings{shape, packing, truncate, {16, 40}};
        for (const Lengths& lengths : {Lengths{2},
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
  for (const std::int64_t rows : {1, 2, 8, 64, 128}) {
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

TEST(Packer, AStreamKeepsTheOrderAndCutsOnlyAtTheEndsOfBatches) {
  const BatchShape shape{2, 32, 64};
  const auto batches = batches_of({shape, Packing::stream, false, {}}, random_lengths(200, 40, 6));
  std::int64_t piece = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    if (b + 1 < batches.size()) {
      EXPECT_EQ(tokens_of(batches[b]), shape.tokens());
    }
    for (const PlacedPiece& p : batches[b]) {
      EXPECT_EQ(p.piece, piece);
      EXPECT_TRUE(p.last || &p == &batches[b].back());
      piece += p.last;
    }
  }
}

TEST(Packer, WhatWaitsCanBeOfferedToAnother) {
  for (const Packing packing : kPackings) {
    const PackerSettings settings{{2, 64, 16}, packing, false, {}};
    const auto offered = pieces_of(random_lengths(1000, 150, 8), settings.cut());
    Packer packer(settings);
    std::size_t next = 0;
    const auto batch = [&](Packer& from, std::size_t& at) {
      Pieces pieces;
      for (;;) {
        while (from.wants() && at < offered.size()) {
          from.offer(static_cast<std::int64_t>(at), offered[at].length, offered[at].ends);
          ++at;
        }
        const auto piece = from.place();
        if (!piece) return pieces;
        pieces.push_back(*piece);
      }
    };
    for (int round = 0; round < 50; ++round) {
      Packer other(settings);
      std::map<std::int64_t, std::int64_t> begins;  // what is left of a piece is offered as one
      for (const Packer::Waiting& w : packer.waiting()) {
        other.offer(w.piece, w.length - w.begin, w.ends);
        begins[w.piece] = w.begin;
      }
      std::size_t at = next;
      const Pieces mine = batch(packer, next), theirs = batch(other, at);
      ASSERT_EQ(mine.size(), theirs.size());
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_EQ(mine[i].piece, theirs[i].piece);
        EXPECT_EQ(mine[i].begin, begins[theirs[i].piece] + theirs[i].begin);
        EXPECT_EQ(mine[i].length, theirs[i].length);
      }
    }
  }
}

// However short documents are, and however many a batch may have: what they are cut into later has room.
TEST(Packer, LeavesRoomForWhatIsCutLater) {
  constexpr std::int64_t kLongest = 16;
  const BatchShape shape{3, 64, 6};
  for (const Packing packing : kPackings) {
    for (const std::uint64_t most : {4u, 20u, 64u, 200u}) {
      const Lengths lengths = random_lengths(2000, most, 11);
      const PackerSettings settings{.shape = shape, .packing = packing, .cut_later = kLongest};
      expect_all_placed(settings, lengths);
      for (const Pieces& batch : batches_of(settings, lengths)) {
        std::int64_t documents = 0;
        for (const PlacedPiece& p : batch) documents += (p.length + kLongest - 1) / kLongest;
        ASSERT_LE(documents, shape.documents()) << static_cast<int>(packing) << " " << most;
      }
    }
  }
}

TEST(Packer, AnEmptyOrTooLongPieceIsOurOwnMistake) {
  Packer packer({{1, 8, 4}, Packing::pack, false, {}});
  EXPECT_THROW(packer.offer(0, 0, true), MachineError);
  EXPECT_THROW(packer.offer(0, 9, true), MachineError);
}

}  // namespace
}  // namespace redline::data
