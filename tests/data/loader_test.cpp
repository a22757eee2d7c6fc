// Batches hold every token of every document once, well packed, and go on from a saved state as
// if nothing had happened.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "data/ping.h"

namespace redline::data {
namespace {

using Tokens = std::vector<std::int32_t>;

// Documents of given lengths. Tokens name their place: document * 10000 + position.
class Listed final : public DocumentSource {
 public:
  explicit Listed(std::vector<std::int64_t> lengths, bool endless = false, bool goes_on = false)
      : lengths_(std::move(lengths)), endless_(endless), goes_on_(goes_on) {}
  std::string name() const override { return "listed"; }
  std::int64_t documents() const override { return endless_ ? 0 : static_cast<std::int64_t>(lengths_.size()); }
  std::uint64_t fingerprint() const override { return 0; }
  std::int64_t vocabulary() const override { return 1 << 30; }
  void read(std::int64_t index, Tokens& tokens) const override {
    tokens.clear();
    for (std::int64_t i = 0; i < length(index); ++i) tokens.push_back(static_cast<std::int32_t>(index * 10000 + i));
  }
  std::int32_t token_after(std::int64_t index) const override {
    return goes_on_ ? static_cast<std::int32_t>(index * 10000 + length(index)) : kNoTarget;
  }
  std::string decode(const Tokens&) const override { return ""; }
  Tokens encode(const std::string&) const override { return {}; }

 private:
  std::int64_t length(std::int64_t index) const { return lengths_[static_cast<std::size_t>(index) % lengths_.size()]; }
  std::vector<std::int64_t> lengths_;
  bool endless_, goes_on_;
};

std::vector<std::int64_t> random_lengths(std::size_t count, std::uint64_t most, std::uint64_t seed) {
  std::vector<std::int64_t> lengths;
  const Random random(seed, 0);
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(static_cast<std::int64_t>(1 + random.below(i, most)));
  return lengths;
}

// What must hold in every batch, whatever it was made from.
void expect_whole(const Batch& b, std::int64_t longest) {
  std::int64_t pairs = 0, scores = 0;
  ASSERT_LE(b.documents, b.shape.documents());
  ASSERT_EQ(b.doc_offsets[0], 0);
  for (std::int64_t d = 0; d < b.documents; ++d) {
    const std::int64_t begin = b.doc_offsets[static_cast<std::size_t>(d)],
                       end = b.doc_offsets[static_cast<std::size_t>(d) + 1];
    ASSERT_LT(begin, end);
    ASSERT_LE(end - begin, longest);
    scores += (end - begin) * (end - begin + 1) / 2;
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(b.positions[at], i - begin);
      pairs += b.targets[at] != kNoTarget;
      if (i + 1 < end) {
        ASSERT_EQ(b.targets[at], b.tokens[at + 1]);
      }
    }
  }
  for (auto d = static_cast<std::size_t>(b.documents); d < b.doc_offsets.size(); ++d)
    ASSERT_EQ(b.doc_offsets[d], b.real_tokens);
  for (auto i = static_cast<std::size_t>(b.real_tokens); i < b.tokens.size(); ++i) {
    ASSERT_EQ(b.tokens[i], 0);
    ASSERT_EQ(b.targets[i], kNoTarget);
    ASSERT_EQ(b.positions[i], 0);
  }
  EXPECT_EQ(b.pairs, pairs);
  EXPECT_EQ(b.score_pairs, scores);
}

bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.positions == b.positions &&
         a.doc_offsets == b.doc_offsets && a.documents == b.documents && a.real_tokens == b.real_tokens &&
         a.pairs == b.pairs && a.score_pairs == b.score_pairs;
}

// Reads a finite source once and compares the (token, target) pairs with those of the documents.
void expect_one_pass(const std::vector<std::int64_t>& lengths, bool goes_on, BatchShape shape,
                     const std::string& packing) {
  std::map<std::pair<std::int32_t, std::int32_t>, int> expected, seen;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    for (std::int64_t i = 0; i < lengths[d]; ++i) {
      const auto token = static_cast<std::int32_t>(static_cast<std::int64_t>(d) * 10000 + i);
      ++expected[{token, i + 1 < lengths[d] || goes_on ? token + 1 : kNoTarget}];
    }
  }
  Loader loader(std::make_unique<Listed>(lengths, false, goes_on), shape, packing);
  Batch batch(shape);
  while (loader.next(batch, false)) {
    expect_whole(batch, shape.seq_len);
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch.real_tokens); ++i)
      ++seen[{batch.tokens[i], batch.targets[i]}];
    if (packing == "pad") {
      EXPECT_LE(batch.documents, shape.rows);
    }
  }
  EXPECT_EQ(batch.documents, 0);
  EXPECT_FALSE(loader.next(batch, false));
  EXPECT_EQ(seen, expected);
}

TEST(Loader, NothingIsLostAndNothingComesTwice) {
  for (const std::string packing : {"pack", "pad"}) {
    for (const bool goes_on : {false, true}) {
      expect_one_pass({1}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({2}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({8}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({9}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({1, 2, 8, 9, 16, 17, 1, 1, 1, 100}, goes_on, {2, 8, 4}, packing);
      expect_one_pass({5, 6, 7}, goes_on, {3, 1, 1}, packing);  // rows of one token
      expect_one_pass(random_lengths(500, 60, 1), goes_on, {4, 32, 3}, packing);
      expect_one_pass(random_lengths(300, 300, 2), goes_on, {2, 64, 1}, packing);
    }
  }
}

TEST(Loader, CapacityOfDocumentsClosesABatch) {
  const BatchShape shape{2, 64, 3};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{1, 2}, true), shape, "pack");
  Batch batch(shape);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(loader.next(batch));
    EXPECT_EQ(batch.documents, 6);
    expect_whole(batch, 2);
  }
}

TEST(Loader, PackingPingWastesAlmostNothingAndPaddingFourFifths) {
  const BatchShape shape{8, 1024, 32};
  std::map<std::string, double> fill;
  for (const std::string packing : {"pack", "pad"}) {
    Loader loader(make_ping(0, 0, PingPart::training), shape, packing);
    Batch batch(shape);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(loader.next(batch));
      expect_whole(batch, 1024);
      fill[packing] += static_cast<double>(batch.real_tokens) / static_cast<double>(shape.tokens()) / 200;
    }
  }
  EXPECT_GT(fill["pack"], 0.99);
  EXPECT_NEAR(fill["pad"], 0.20, 0.02);
}

TEST(Loader, NothingWaitsForEver) {
  // Tiny documents among ones that fill a batch whole: each of them comes within as many batches as can wait.
  std::vector<std::int64_t> lengths(50, 32);
  lengths[7] = 3;
  const BatchShape shape{1, 32, 4};
  Loader loader(std::make_unique<Listed>(lengths, true), shape, "pack");
  Batch batch(shape);
  int last_seen = 0;
  for (int i = 1; i < 2000; ++i) {
    loader.next(batch);
    for (std::int64_t d = 0; d < batch.documents; ++d) {
      if (batch.tokens[static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d)])] / 10000 % 50 == 7)
        last_seen = i;
    }
    ASSERT_LT(i - last_seen, 200);
  }
}

TEST(Loader, LongDocumentsShareABatch) {
  const BatchShape shape{4, 16, 4};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>(8, 1000)), shape, "pack");
  Batch batch(shape);
  ASSERT_TRUE(loader.next(batch));
  std::map<std::int32_t, int> documents;
  for (const std::int32_t t : batch.tokens) ++documents[t / 10000];
  EXPECT_EQ(documents.size(), 4u);
}

TEST(Loader, EpochsReadEveryDocumentInAnotherOrder) {
  const BatchShape shape{1, 10, 1};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>(100, 10)), shape, "pack");
  Batch batch(shape);
  std::vector<std::vector<std::int32_t>> epochs(3);
  for (auto& epoch : epochs) {
    std::map<std::int32_t, int> seen;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(loader.next(batch));
      epoch.push_back(batch.tokens[0] / 10000);
      ++seen[epoch.back()];
    }
    EXPECT_EQ(seen.size(), 100u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(Loader, GoesOnFromASavedStateBitForBit) {
  const std::vector<std::function<std::unique_ptr<DocumentSource>()>> sources = {
      [] { return make_ping(1, 0, PingPart::training); },
      [] { return make_ping(1, 90, PingPart::training); },  // epochs of two batches or so
      [] { return std::make_unique<Listed>(random_lengths(37, 2000, 5), false, true); },
  };
  for (const auto& source : sources) {
    for (const std::string packing : {"pack", "pad"}) {
      const BatchShape shape{4, 256, 8};
      constexpr int kBatches = 60;
      std::vector<Batch> batches;
      std::vector<LoaderState> states;
      Loader straight(source(), shape, packing);
      for (int i = 0; i < kBatches; ++i) {
        states.push_back(straight.state());
        batches.emplace_back(shape);
        ASSERT_TRUE(straight.next(batches.back()));
      }
      Loader jumping(source(), shape, packing);
      Batch batch(shape);
      const Random random(9, 9);
      for (std::uint64_t trial = 0; trial < 30; ++trial) {
        std::size_t at = random.below(trial, kBatches - 4);
        jumping.restore(states[at]);
        EXPECT_EQ(jumping.state(), states[at]);
        for (int i = 0; i < 3; ++i, ++at) {
          ASSERT_TRUE(jumping.next(batch));
          EXPECT_TRUE(same(batch, batches[at]));
          EXPECT_EQ(jumping.state(), states[at + 1]);
        }
        jumping.restore(jumping.state());
        ASSERT_TRUE(jumping.next(batch));
        EXPECT_TRUE(same(batch, batches[at]));
      }
      EXPECT_LE(states.back().waiting.size(), 64u);
    }
  }
}

TEST(Loader, AStateOfOtherDataIsRefused) {
  const BatchShape shape{1, 16, 4};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), shape, "pack");
  const std::vector<LoaderState> strangers = {{-1, {}},      {0, {{2, 0}}},  {0, {{-1, 0}}},
                                              {0, {{0, 5}}}, {0, {{0, -1}}}, {0, std::vector<LoaderState::Piece>(65)}};
  const LoaderState before = loader.state();
  for (const LoaderState& state : strangers) EXPECT_THROW(loader.restore(state), UserError);
  EXPECT_EQ(loader.state(), before);
}

}  // namespace
}  // namespace redline::data
