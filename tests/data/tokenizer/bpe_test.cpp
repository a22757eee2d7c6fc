// Merging: the heap for long pieces and the search for short ones agree with doing it the slow way, and a megabyte
// without a space is no trouble.
#include "data/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/random.h"

namespace redline::data {
namespace {

// Bytes a to d are ids 0 to 3; `merges` random pairs of what is there make more.
BpeModel random_model(std::uint64_t seed, int merges) {
  const Random random(seed, 2);
  BpeModel model;
  model.byte_ids.fill(-1);
  for (int b = 0; b < 4; ++b) model.byte_ids[static_cast<std::size_t>('a' + b)] = b;
  model.merges = MergeTable(static_cast<std::size_t>(merges));
  for (int m = 0; m < merges; ++m) {
    const auto ids = static_cast<std::uint64_t>(4 + m);
    const auto left = static_cast<std::int32_t>(random.below(2 * static_cast<std::uint64_t>(m), ids));
    const auto right = static_cast<std::int32_t>(random.below(2 * static_cast<std::uint64_t>(m) + 1, ids));
    if (model.merges.find(left, right).id < 0) model.merges.set(left, right, {static_cast<std::uint32_t>(m), 4 + m});
  }
  return model;
}

std::vector<std::int32_t> slow(const BpeModel& model, const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(model.byte_ids[static_cast<unsigned char>(c)]);
  while (true) {
    MergeTable::Merge best{MergeTable::kNoRank, -1};
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const MergeTable::Merge merge = model.merges.find(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) best = merge, at = i;
    }
    if (best.id < 0) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeTest, ShortAndLongPiecesMergeAsTheDefinitionSays) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const BpeModel model = random_model(seed, 60);
    BpeMerger merger(model);
    const Random random(seed, 3);
    for (const std::uint64_t length : {1u, 2u, 3u, 10u, 64u, 95u, 96u, 97u, 98u, 200u}) {
      std::string text;
      for (std::uint64_t i = 0; i < length; ++i) text += static_cast<char>('a' + random.below(length * 1000 + i, 4));
      std::vector<std::int32_t> ids;
      merger.append(text, ids);
      ASSERT_EQ(ids, slow(model, text)) << "seed " << seed << ", length " << length;
    }
  }
}

TEST(BpeTest, AMegabyteInOnePieceIsMergedInSeconds) {
  const BpeModel model = random_model(5, 400);
  BpeMerger merger(model);
  for (const bool same : {true, false}) {
    std::string text;
    const Random random(9, 4);
    for (std::uint64_t i = 0; i < 1'000'000; ++i) text += same ? 'a' : static_cast<char>('a' + random.below(i, 4));
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::int32_t> ids;
    merger.append(text, ids);
    EXPECT_LE(ids.size(), text.size());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

TEST(BpeTest, BytesOutsideTheVocabularyAreDroppedOrUnknown) {
  BpeModel model = random_model(1, 0);
  const auto encode = [&] {
    std::vector<std::int32_t> ids;
    BpeMerger(model).append("axxbx", ids);
    return ids;
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(encode(), (Ids{0, 1}));
  model.unknown = 9;
  EXPECT_EQ(encode(), (Ids{0, 9, 9, 1, 9}));
  model.fuse_unknown = true;
  EXPECT_EQ(encode(), (Ids{0, 9, 1, 9}));
}

}  // namespace
}  // namespace redline::data
