// A batch keeps its own books: offsets, positions, targets and counts follow from what was appended.
#include "data/batch.h"

#include <gtest/gtest.h>

namespace redline::data {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(Batch, DocumentsStandBackToBack) {
  Batch b({2, 4, 2});
  EXPECT_TRUE(b.append(Tokens{5, 6, 7}));
  EXPECT_TRUE(b.append(Tokens{8}, 9));
  EXPECT_TRUE(b.append(Tokens{1, 2}));
  EXPECT_EQ(b.tokens, (Tokens{5, 6, 7, 8, 1, 2, 0, 0}));
  EXPECT_EQ(b.targets, (Tokens{6, 7, kNoTarget, 9, 2, kNoTarget, kNoTarget, kNoTarget}));
  EXPECT_EQ(b.positions, (Tokens{0, 1, 2, 0, 0, 1, 0, 0}));
  EXPECT_EQ(b.doc_offsets, (Tokens{0, 3, 4, 6, 6}));
  EXPECT_EQ(b.documents, 3);
  EXPECT_EQ(b.real_tokens, 6);
  EXPECT_EQ(b.pairs, 2 + 1 + 1);
  EXPECT_EQ(b.score_pairs, 6 + 1 + 3);
  EXPECT_EQ(b.room(), 2);
}

TEST(Batch, WhatDoesNotFitChangesNothing) {
  Batch b({1, 4, 2});
  EXPECT_FALSE(b.append(Tokens(5, 1)));
  EXPECT_TRUE(b.append(Tokens{1}));
  EXPECT_TRUE(b.append(Tokens{2}));
  const Batch before = b;
  EXPECT_FALSE(b.append(Tokens{3}));  // room for tokens, none for documents
  EXPECT_EQ(b.tokens, before.tokens);
  EXPECT_EQ(b.doc_offsets, before.doc_offsets);
  EXPECT_EQ(b.real_tokens, 2);
}

TEST(Batch, ClearedIsLikeNew) {
  Batch b({2, 3, 1});
  b.append(Tokens{1, 2, 3}, 4);
  b.clear();
  const Batch fresh({2, 3, 1});
  EXPECT_EQ(b.tokens, fresh.tokens);
  EXPECT_EQ(b.targets, fresh.targets);
  EXPECT_EQ(b.positions, fresh.positions);
  EXPECT_EQ(b.doc_offsets, fresh.doc_offsets);
  EXPECT_EQ(b.documents + b.real_tokens + b.pairs + b.score_pairs, 0);
}

TEST(Batch, CutDocumentsAreThoseThatWereAppendedSo) {
  Batch b({3, 8, 4}), want({3, 8, 4});
  b.append(Tokens{1, 2, 3, 4, 5, 6, 7}, 8, 40);
  b.append(Tokens{11, 12}, kNoTarget, 41);
  b.append(Tokens{21, 22, 23, 24, 25, 26}, kNoTarget, 42);
  b.append(Tokens{31, 32, 33}, 34, 43);
  want.append(Tokens{1, 2, 3}, 4, 40);
  want.append(Tokens{4, 5, 6}, 7, 40);
  want.append(Tokens{7}, 8, 40);
  want.append(Tokens{11, 12}, kNoTarget, 41);
  want.append(Tokens{21, 22, 23}, 24, 42);
  want.append(Tokens{24, 25, 26}, kNoTarget, 42);
  want.append(Tokens{31, 32, 33}, 34, 43);
  const Batch before = b;
  b.cut_documents(8);
  EXPECT_EQ(b.doc_offsets, before.doc_offsets) << "none is longer";
  b.cut_documents(3);
  EXPECT_EQ(b.tokens, want.tokens);
  EXPECT_EQ(b.targets, want.targets);
  EXPECT_EQ(b.positions, want.positions);
  EXPECT_EQ(b.doc_offsets, want.doc_offsets);
  EXPECT_EQ(b.sources, want.sources);
  EXPECT_EQ(b.documents, want.documents);
  EXPECT_EQ(b.real_tokens, want.real_tokens);
  EXPECT_EQ(b.pairs, want.pairs);
  EXPECT_EQ(b.score_pairs, want.score_pairs);
}

TEST(Batch, TheShortestCutIsTheShortestThatThereIsRoomFor) {
  const auto documents = [](data::BatchShape shape, std::initializer_list<int> lengths) {
    Batch b(shape);
    for (const int length : lengths) EXPECT_TRUE(b.append(Tokens(static_cast<std::size_t>(length), 1)));
    return b;
  };
  EXPECT_EQ(documents({2, 16, 8}, {16, 16}).shortest_cut(2), 2);  // 16 pieces, and room for 16
  EXPECT_EQ(documents({2, 16, 8}, {16, 15}).shortest_cut(1), 2);
  EXPECT_EQ(documents({2, 16, 3}, {16, 16}).shortest_cut(2), 6) << "3 pieces each";
  EXPECT_EQ(documents({2, 16, 3}, {16, 5, 9}).shortest_cut(2), 6) << "3, 1 and 2";
  EXPECT_EQ(documents({2, 16, 1}, {16, 15}).shortest_cut(2), 16) << "none can be cut";
  EXPECT_EQ(documents({2, 16, 1}, {16, 15}).shortest_cut(100), 100);
  EXPECT_EQ(documents({2, 16, 1}, {}).shortest_cut(2), 2);
  for (const std::int64_t least : {1, 3, 4, 5, 7, 16, 20}) {
    const Batch b = documents({3, 16, 4}, {16, 1, 7, 13, 5});
    const std::int64_t cut = b.shortest_cut(least);
    Batch fits = b;
    fits.cut_documents(cut);
    EXPECT_EQ(fits.documents, b.pieces(cut));
    EXPECT_LE(fits.documents, 12);
    if (cut > least) {
      EXPECT_GT(b.pieces(cut - 1), 12) << least;
    }
  }
}

TEST(Batch, FullRowsThatAreCutAreNoFullRows) {
  Batch b({2, 4, 4});
  b.append(Tokens{1, 2, 3, 4}, 5);
  b.append(Tokens{5, 6, 7, 8});
  EXPECT_TRUE(b.full_rows());
  b.cut_documents(2);
  EXPECT_FALSE(b.full_rows());
  EXPECT_EQ(b.doc_offsets, (Tokens{0, 2, 4, 6, 8, 8, 8, 8, 8}));
  EXPECT_EQ(b.pairs, 7);
}

}  // namespace
}  // namespace redline::data
