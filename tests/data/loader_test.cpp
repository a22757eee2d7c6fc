// Batches hold every token of every document once, well packed, and go on from a saved state as
// if nothing had happened.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "data/listed.h"
#include "data/ping.h"

namespace redline::data {
namespace {

// Reads a finite source once and compares the (token, target) pairs with those of the documents.
void expect_one_pass(const std::vector<std::int64_t>& lengths, bool goes_on, BatchShape shape,
                     const std::string& packing, std::int64_t workers = 0) {
  std::map<std::pair<std::int32_t, std::int32_t>, int> expected, seen;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    for (std::int64_t i = 0; i < lengths[d]; ++i) {
      const auto token = static_cast<std::int32_t>(static_cast<std::int64_t>(d) * 10000 + i);
      ++expected[{token, i + 1 < lengths[d] || goes_on ? token + 1 : kNoTarget}];
    }
  }
  Loader loader(std::make_unique<Listed>(lengths, false, goes_on), options_for(shape, packing, workers, false));
  Batch batch(shape);
  while (loader.next(batch)) {
    expect_whole(batch, shape.seq_len);
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch.real_tokens); ++i)
      ++seen[{batch.tokens[i], batch.targets[i]}];
    if (packing == "pad") {
      EXPECT_LE(batch.documents, shape.rows);
    }
  }
  EXPECT_EQ(batch.documents, 0);
  EXPECT_FALSE(loader.next(batch));
  EXPECT_EQ(seen, expected);
}

TEST(Loader, NothingIsLostAndNothingComesTwice) {
  for (const std::string& packing : kPackings) {
    for (const bool goes_on : {false, true}) {
      expect_one_pass({1}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({2}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({8}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({9}, goes_on, {1, 8, 4}, packing);
      expect_one_pass({1, 2, 8, 9, 16, 17, 1, 1, 1, 100}, goes_on, {2, 8, 4}, packing);
      expect_one_pass({5, 6, 7}, goes_on, {3, 1, 1}, packing);  // rows of one token
      expect_one_pass(random_lengths(500, 60, 1), goes_on, {4, 32, 3}, packing);
      expect_one_pass(random_lengths(300, 300, 2), goes_on, {2, 64, 1}, packing);
      expect_one_pass(random_lengths(300, 300, 2), goes_on, {2, 64, 1}, packing, 3);
    }
  }
}

TEST(Loader, CapacityOfDocumentsClosesABatch) {
  const BatchShape shape{2, 64, 3};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{1, 2}, true), options_for(shape, "pack"));
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
  for (const std::string& packing : kPackings) {
    Loader loader(make_ping(0, 0, PingPart::training), options_for(shape, packing, 2));
    Batch batch(shape);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(loader.next(batch));
      expect_whole(batch, 1024);
      fill[packing] += static_cast<double>(batch.real_tokens) / static_cast<double>(shape.tokens()) / 200;
    }
  }
  EXPECT_GT(fill["pack"], 0.99);
  EXPECT_GT(fill["stream"], 0.999);
  EXPECT_GT(fill["bucket"], 0.65);
  EXPECT_NEAR(fill["pad"], 0.20, 0.02);
}

TEST(Loader, NothingWaitsForEver) {
  // Tiny documents among ones that fill a batch whole: each of them comes within as many batches as can wait.
  std::vector<std::int64_t> lengths(50, 32);
  lengths[7] = 3;
  const BatchShape shape{1, 32, 4};
  Loader loader(std::make_unique<Listed>(lengths, true), options_for(shape, "pack"));
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
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>(8, 1000)), options_for(shape, "pack"));
  Batch batch(shape);
  ASSERT_TRUE(loader.next(batch));
  std::map<std::int32_t, int> documents;
  for (const std::int32_t t : batch.tokens) ++documents[t / 10000];
  EXPECT_EQ(documents.size(), 4u);
}

TEST(Loader, EpochsReadEveryDocumentInAnotherOrder) {
  const BatchShape shape{1, 10, 1};
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>(100, 10)), options_for(shape, "pack"));
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

TEST(Loader, GoesOnFromASavedStateBitForBitWithAnyNumberOfWorkers) {
  const std::vector<std::function<std::unique_ptr<Corpus>()>> sources = {
      [] { return make_ping(1, 0, PingPart::training); },
      [] { return make_ping(1, 90, PingPart::training); },  // epochs of two batches or so
      [] { return std::make_unique<Listed>(random_lengths(37, 2000, 5), false, true); },
  };
  for (const auto& source : sources)
    for (const std::string& packing : kPackings) expect_goes_on(source, options_for({4, 256, 8}, packing));
}

TEST(Loader, TruncatesWhereAskedAndCountsWhatItDropped) {
  const std::vector<std::int64_t> lengths = random_lengths(100, 100, 3);
  std::int64_t dropped = 0, kept = 0;
  for (const std::int64_t length : lengths)
    dropped += std::max<std::int64_t>(length - 32, 0), kept += std::min<std::int64_t>(length, 32);
  for (const std::string& packing : kPackings) {
    const BatchShape shape{4, 32, 8};
    LoaderOptions options = options_for(shape, packing, 1, false);
    options.packer.truncate = true;
    Loader loader(std::make_unique<Listed>(lengths), options);
    Batch batch(shape);
    std::int64_t tokens = 0;
    while (loader.next(batch)) {
      expect_whole(batch, 32);
      tokens += batch.real_tokens;
    }
    EXPECT_EQ(tokens, kept);
    EXPECT_EQ(loader.state().truncated_tokens, dropped);
    options.feed.repeat = true;
    expect_goes_on([&] { return std::make_unique<Listed>(lengths); }, options);
  }
}

TEST(Loader, RanksShareAnEpoch) {
  for (const std::int64_t ranks : {1, 2, 3, 7}) {
    for (const bool shuffle : {true, false}) {
      std::map<std::int64_t, int> seen;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        LoaderOptions options = options_for({1, 64, 8}, "pack", 1, false);
        options.feed.share = {rank, ranks};
        options.feed.shuffle = shuffle;
        Loader loader(std::make_unique<Listed>(random_lengths(100, 60, 3)), options);
        Batch batch({1, 64, 8});
        while (loader.next(batch))
          for (const std::int64_t d : batch.sources) ++seen[d];
      }
      EXPECT_EQ(seen.size(), 100u);
      for (const auto& [document, times] : seen) EXPECT_EQ(times, 1) << document;
    }
  }
  LoaderOptions options = options_for({1, 64, 8}, "pack");
  options.feed.share = {2, 3};
  EXPECT_THROW(Loader(std::make_unique<Listed>(std::vector<std::int64_t>{5, 5}), options), UserError);
}

TEST(Loader, WithoutShufflingDocumentsComeAsTheyStand) {
  LoaderOptions options = options_for({1, 64, 8}, "stream", 2);
  options.feed.shuffle = false;
  Loader loader(std::make_unique<Listed>(random_lengths(50, 60, 3)), options);
  Batch batch({1, 64, 8});
  std::vector<std::int64_t> order;
  while (order.size() < 100) {
    ASSERT_TRUE(loader.next(batch));
    for (const std::int64_t d : batch.sources)
      if (order.empty() || order.back() != d) order.push_back(d);
  }
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<std::int64_t>(i % 50));
}

TEST(Loader, EmptyDocumentsArePassedOverAndCounted) {
  const std::vector<std::int64_t> lengths = {0, 5, 0, 0, 6, 7, 0};
  for (const std::string& packing : kPackings) {
    Loader loader(std::make_unique<Listed>(lengths), options_for({1, 64, 8}, packing, 1, false));
    Batch batch({1, 64, 8});
    std::int64_t tokens = 0;
    while (loader.next(batch)) tokens += batch.real_tokens;
    EXPECT_EQ(tokens, 18);
    EXPECT_EQ(loader.state().empty_documents, 4);
    expect_goes_on([&] { return std::make_unique<Listed>(lengths); }, options_for({1, 8, 8}, packing));
  }
  Loader nothing(std::make_unique<Listed>(std::vector<std::int64_t>{0, 0}), options_for({1, 8, 8}, "pack", 1));
  Batch batch({1, 8, 8});
  EXPECT_THROW(nothing.next(batch), UserError);
}

TEST(Loader, AStateOfOtherDataIsRefused) {
  const BatchShape shape{1, 16, 4};
  const std::vector<LoaderState> strangers = {
      {{.epoch = -1}, {}}, {{.position = -1}, {}}, {{.position = 3}, {}}, {{}, {{2, 0}}},
      {{}, {{-1, 0}}},     {{}, {{0, 5}}},         {{}, {{0, -1}}},       {{}, std::vector<LoaderState::Piece>(65)}};
  for (const std::int64_t workers : {0, 2}) {
    Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), options_for(shape, "pack", workers));
    Loader other(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), options_for(shape, "pack"));
    Batch batch(shape), expected(shape);
    for (const LoaderState& state : strangers) {
      ASSERT_TRUE(loader.next(batch));
      ASSERT_TRUE(other.next(expected));
      EXPECT_TRUE(same(batch, expected));
      const LoaderState before = loader.state();
      EXPECT_THROW(loader.restore(state), UserError);
      EXPECT_EQ(loader.state(), before);
    }
  }
}

}  // namespace
}  // namespace redline::data
