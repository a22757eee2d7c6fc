// Batches hold every token of every document once, well packed, and go on from a saved state as if nothing had
// happened. Those of one rank go round several, whatever the packing, and a rank reads no document but its own.
#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "data/from_config.h"
#include "data/generated.h"
#include "data/listed.h"
#include "testing/says.h"

namespace redline::data {
namespace {

// Reads a finite source once and compares the (token, target) pairs with those of the documents.
void expect_one_pass(const std::vector<std::int64_t>& lengths, BatchShape shape, const std::string& packing,
                     std::int64_t workers = 0) {
  std::map<std::pair<std::int32_t, std::int32_t>, int> expected, seen;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    for (std::int64_t i = 0; i + 1 < lengths[d]; ++i) {
      const auto token = static_cast<std::int32_t>(static_cast<std::int64_t>(d) * 10000 + i);
      ++expected[{token, token + 1}];
    }
  }
  Loader loader(std::make_unique<Listed>(lengths), options_for(shape, packing, workers, false));
  Batch batch(shape);
  while (loader.next(batch)) {
    expect_whole(batch, shape.seq_len);
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch.real_tokens); ++i)
      if (batch.targets[i] != kNoTarget) ++seen[{batch.tokens[i], batch.targets[i]}];
    if (packing == "pad") {
      EXPECT_LE(batch.documents, shape.rows);
    }
    if (packing == "stream") continue;
    for (std::int64_t d = 0; d < batch.documents; ++d) {  // pieces begin at multiples of a row
      const auto begin = static_cast<std::size_t>(batch.doc_offsets[static_cast<std::size_t>(d)]);
      EXPECT_EQ(batch.tokens[begin] % 10000 % shape.seq_len, 0);
    }
  }
  EXPECT_EQ(batch.documents, 0);
  EXPECT_FALSE(loader.next(batch));
  EXPECT_EQ(seen, expected);
}

TEST(Loader, NothingIsLostAndNothingComesTwice) {
  for (const std::string& packing : kPackingNames) {
    expect_one_pass({2}, {1, 8, 4}, packing);
    expect_one_pass({8}, {1, 8, 4}, packing);
    expect_one_pass({9}, {1, 8, 4}, packing);
    expect_one_pass({1, 2, 8, 9, 16, 17, 1, 1, 1, 100}, {2, 8, 4}, packing);
    expect_one_pass({5, 6, 7}, {3, 1, 1}, packing);  // rows of one token
    expect_one_pass(random_lengths(500, 60, 1), {4, 32, 3}, packing);
    expect_one_pass(random_lengths(300, 300, 2), {2, 64, 1}, packing);
    expect_one_pass(random_lengths(300, 300, 2), {2, 64, 1}, packing, 3);
  }
}

// A step of such pieces alone would have nothing to learn from.
TEST(Loader, NoPieceWithoutATargetReachesABatch) {
  const std::vector<std::int64_t> lengths = {1, 9, 1, 17, 1, 2, 10};  // in rows of 8: last pieces of one token, and two
  for (const std::string& packing : kPackingNames) {
    for (const bool endless : {false, true}) {
      const BatchShape shape{1, 8, 1};
      Loader loader(std::make_unique<Listed>(lengths, endless), options_for(shape, packing, 1));
      Batch batch(shape);
      for (int i = 0; i < 100; ++i) {
        ASSERT_TRUE(loader.next(batch));
        expect_whole(batch, 8);
        EXPECT_GT(batch.pairs, 0) << packing;
      }
      EXPECT_GT(loader.state().empty_documents, 3);
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
  for (const std::string& packing : kPackingNames) {
    Loader loader(make_ping(0, 0, Part::training), options_for(shape, packing, 2));
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

// The pieces of one long document, and those of many, come in no order that the text knows, and in another each epoch.
TEST(Loader, NeighboursInATextAreNoNeighboursInABatch) {
  const BatchShape shape{4, 16, 4};
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{9601}, std::vector<std::int64_t>(8, 1201)}) {
    for (const std::string& packing : kPackingNames) {
      Loader loader(std::make_unique<Listed>(lengths), options_for(shape, packing));
      Batch batch(shape);
      std::vector<std::vector<std::int32_t>> epochs(2);
      for (auto& epoch : epochs) {
        int neighbours = 0;
        for (int i = 0; i < 150; ++i) {
          ASSERT_TRUE(loader.next(batch));
          EXPECT_TRUE(batch.full_rows());
          EXPECT_EQ(batch.pairs, shape.tokens());
          std::vector<std::int32_t> begins;
          for (int row = 0; row < 4; ++row) begins.push_back(batch.tokens[static_cast<std::size_t>(16 * row)]);
          epoch.insert(epoch.end(), begins.begin(), begins.end());
          std::ranges::sort(begins);
          for (std::size_t row = 1; row < 4; ++row) neighbours += begins[row] == begins[row - 1] + 16;
        }
        EXPECT_LT(neighbours, 20) << packing;  // 6 of 450 by chance
      }
      EXPECT_NE(epochs[0], epochs[1]);
      for (auto& epoch : epochs) std::ranges::sort(epoch);
      EXPECT_EQ(epochs[0], epochs[1]);
      EXPECT_EQ(std::ranges::adjacent_find(epochs[0]), epochs[0].end());
    }
  }
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
      [] { return make_ping(1, 0, Part::training); },
      [] { return make_ping(1, 90, Part::training); },  // epochs of two batches or so
      [] { return std::make_unique<Listed>(random_lengths(37, 2000, 5)); },
      [] { return std::make_unique<Listed>(random_lengths(37, 2000, 5), true); },  // several pieces a document
  };
  for (const auto& source : sources)
    for (const std::string& packing : kPackingNames) expect_goes_on(source, options_for({4, 256, 8}, packing));
}

TEST(Loader, TruncatesWhereAskedAndCountsWhatItDropped) {
  const std::vector<std::int64_t> lengths = random_lengths(100, 100, 3);
  std::int64_t dropped = 0, kept = 0;
  for (const std::int64_t length : lengths) {
    dropped += std::max<std::int64_t>(length - 32, 0);
    kept += length < 2 ? 0 : std::min<std::int64_t>(length, 32);
  }
  for (const std::string& packing : kPackingNames) {
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
    EXPECT_LE(tokens, kept);  // a stream leaves out a last token that has no target and would open a batch
    EXPECT_GE(tokens, packing == "stream" ? kept - 10 : kept);
    EXPECT_EQ(loader.state().truncated_tokens, dropped);
    options.feed.repeat = true;
    expect_goes_on([&] { return std::make_unique<Listed>(lengths); }, options);
  }
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
  const std::vector<std::int64_t> lengths = {0, 5, 0, 1, 6, 7, 0};  // one token is nothing to learn from either
  for (const std::string& packing : kPackingNames) {
    Loader loader(std::make_unique<Listed>(lengths), options_for({1, 64, 8}, packing, 1, false));
    Batch batch({1, 64, 8});
    std::int64_t tokens = 0;
    while (loader.next(batch)) tokens += batch.real_tokens;
    EXPECT_EQ(tokens, 18);
    EXPECT_EQ(loader.state().empty_documents, 4);
    expect_goes_on([&] { return std::make_unique<Listed>(lengths); }, options_for({1, 8, 8}, packing));
  }
  Loader nothing(std::make_unique<Listed>(std::vector<std::int64_t>{0, 1}), options_for({1, 8, 8}, "pack", 1));
  Batch batch({1, 8, 8});
  EXPECT_THROW(nothing.next(batch), UserError);
}

TEST(Loader, AStateOfOtherDataIsRefused) {
  const BatchShape shape{1, 16, 4};
  const std::vector<LoaderState> strangers = {
      {{.epoch = -1}, {}}, {{.position = -1}, {}}, {{.position = 3}, {}},
      {{}, {{2, 0}}},      {{}, {{-1, 0}}},        {{}, {{0, 5}}},
      {{}, {{0, 4}}},      {{}, {{0, -1}}},        {{}, std::vector<PieceId>(65)}};
  for (const std::int64_t ranks : {1, 2})
    for (const std::int64_t workers : {0, 2}) {
      LoaderOptions options = options_for(shape, "pack", workers);
      options.rank = ranks - 1;
      options.ranks = ranks;
      Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), options);
      Loader other(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), options);
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

TEST(Loader, AStateOfTheOldOrderIsRefusedInASentence) {
  Loader loader(std::make_unique<Listed>(std::vector<std::int64_t>{5, 6}), options_for({1, 16, 4}, "pack"));
  LoaderState old;
  old.order = 1;
  EXPECT_TRUE(testing::says(testing::error_of([&] { loader.restore(old); }), {"another order"}));
  loader.restore({});
}

// The first batches of an evaluation are a sample of all pieces: not of beginnings, and not of the longest.
TEST(Loader, HeldOutBatchesAreSpreadOverTheWholeSplit) {
  const std::vector<std::int64_t> lengths = random_lengths(2000, 900, 7);
  config::Data data;
  data.packing = "stream";  // whatever training does
  const BatchShape shape{4, 64, 16};
  const auto read = [&](std::int64_t seed, int batches) {
    data.seed = seed;
    data.shuffle = seed == 0;
    Loader loader(std::make_unique<Listed>(lengths), evaluation_options(data, shape));
    Batch batch(shape);
    std::vector<std::int32_t> begins;
    std::int64_t short_pieces = 0;
    for (int i = 0; i < batches && loader.next(batch); ++i) {
      expect_whole(batch, 64);
      for (std::int64_t d = 0; d < batch.documents; ++d) {
        const auto at = static_cast<std::size_t>(d);
        begins.push_back(batch.tokens[static_cast<std::size_t>(batch.doc_offsets[at])]);
        short_pieces += batch.doc_offsets[at + 1] - batch.doc_offsets[at] < 64;
      }
    }
    return std::pair(begins, short_pieces);
  };
  const auto [some, some_short] = read(0, 200);
  const auto [all, all_short] = read(0, 1'000'000);
  EXPECT_EQ(read(5, 200).first, some);
  std::size_t pieces = 0;
  for (const std::int64_t length : lengths) pieces += length < 2 ? 0 : static_cast<std::size_t>(Cut{64}.pieces(length));
  EXPECT_EQ(all.size(), pieces);
  const auto mean = [](const std::vector<std::int32_t>& begins, std::int32_t what) {
    double sum = 0;
    for (const std::int32_t token : begins) sum += what == 0 ? token / 10000 : token % 10000;
    return sum / static_cast<double>(begins.size());
  };
  for (const std::int32_t what : {0, 1}) EXPECT_NEAR(mean(some, what) / mean(all, what), 1, 0.08);
  EXPECT_NEAR(static_cast<double>(some_short) / static_cast<double>(some.size()),
              static_cast<double>(all_short) / static_cast<double>(all.size()), 0.04);
}

// Held-out tokens are the same pieces, whatever the batch holds and whoever evaluates it.
TEST(Loader, HeldOutTokensAreTheSameForAnyBatchAndAnyRanks) {
  const std::vector<std::int64_t> lengths = random_lengths(500, 300, 7);
  const auto read = [&](BatchShape shape, std::int64_t ranks, std::int64_t most) {
    std::multiset<std::vector<std::int32_t>> pieces;
    std::int64_t tokens = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions options = evaluation_options({}, shape, most);
      options.rank = rank;
      options.ranks = ranks;
      Loader loader(std::make_unique<Listed>(lengths), options);
      Batch batch(shape);
      for (int again = 0; again < 2; ++again) {  // every evaluation begins anew
        loader.restore({});
        while (loader.next(batch)) {
          if (again == 0) continue;
          tokens += batch.real_tokens;
          for (std::int64_t d = 0; d < batch.documents; ++d) {
            const auto at = batch.doc_offsets.begin() + d;
            pieces.insert({batch.tokens.begin() + at[0], batch.tokens.begin() + at[1]});
          }
        }
      }
    }
    return std::pair(pieces, tokens);
  };
  const auto [pieces, tokens] = read({1, 64, 16}, 1, 4000);
  EXPECT_LE(tokens, 4000);
  EXPECT_GT(tokens, 4000 - 64);
  for (const auto& [rows, segments, ranks] :
       {std::tuple{2, 16, 1}, std::tuple{32, 16, 1}, std::tuple{7, 1, 1}, std::tuple{1, 16, 3}, std::tuple{40, 2, 4}})
    EXPECT_EQ(read({rows, 64, segments}, ranks, 4000).first, pieces) << rows << " " << segments << " " << ranks;
  // More tokens are the same ones and others; a limit below one piece is one piece; none is all.
  const auto more = read({8, 64, 16}, 1, 9000).first;
  EXPECT_TRUE(std::ranges::includes(more, pieces));
  EXPECT_EQ(read({8, 64, 16}, 1, 1).first.size(), 1u);
  EXPECT_GT(read({8, 64, 16}, 1, 0).second, 50'000);
}

TEST(Loader, KnowsWhatAnEpochComesTo) {
  const std::vector<std::int64_t> lengths = random_lengths(3000, 200, 4);
  std::int64_t tokens = 0;
  for (const std::int64_t length : lengths) tokens += length;
  for (const std::string& packing : kPackingNames) {
    const BatchShape shape{4, 64, 16};
    Loader loader(std::make_unique<Listed>(lengths), options_for(shape, packing, 0, false));
    const std::optional<Epoch> epoch = loader.epoch();
    ASSERT_TRUE(epoch);
    EXPECT_EQ(epoch->documents, 3000);
    EXPECT_EQ(epoch->tokens, tokens);
    Batch batch(shape);
    double batches = 0, before = 0;
    while (loader.next(batch)) {
      ++batches;
      EXPECT_GE(*loader.epochs_read(), before);
      before = *loader.epochs_read();
    }
    EXPECT_NEAR(before, 1, 1e-9);
    EXPECT_NEAR(epoch->batches, batches, packing == "bucket" ? 5 : 1) << packing;
    const Epoch counted = count_epoch(std::make_unique<Listed>(lengths), options_for(shape, packing, 2), {});
    EXPECT_EQ(counted.documents, 3000 - std::ranges::count(lengths, 1)) << "those with something to predict";
    EXPECT_NEAR(static_cast<double>(counted.tokens), static_cast<double>(tokens), 0.01 * static_cast<double>(tokens));
    EXPECT_GT(counted.batches, batches - 1) << packing;
    EXPECT_LE(counted.batches, batches) << packing;
  }
  Loader endless(std::make_unique<Listed>(lengths, true), options_for({4, 64, 16}, "pack"));
  EXPECT_FALSE(endless.epoch());
  EXPECT_FALSE(endless.epochs_read());
}

// Documents in memory that note which of them were read, and how many tokens.
class Watched final : public DocumentSource {
 public:
  struct Reads {
    std::atomic<std::int64_t> tokens{0};
    std::vector<std::atomic<bool>> documents;
    explicit Reads(std::size_t count) : documents(count) {}
  };
  Watched(std::vector<std::int64_t> lengths, Reads& reads, std::int64_t bad = -1)
      : listed_(std::move(lengths)), reads_(reads), bad_(bad) {}
  std::string name() const override { return "watched"; }
  std::int64_t documents() const override { return listed_.documents(); }
  std::uint64_t fingerprint() const override { return 0; }
  std::int64_t vocabulary() const override { return listed_.vocabulary(); }
  void read(std::int64_t index, Tokens& tokens) const override {
    tokens.clear();
    append(index, 0, length(index), tokens);
  }
  void append(std::int64_t index, std::int64_t begin, std::int64_t count, Tokens& tokens) const override {
    if (index == bad_) fail_user("document {} is broken", index);
    reads_.tokens += count;
    reads_.documents[static_cast<std::size_t>(index)] = true;
    listed_.append(index, begin, count, tokens);
  }
  std::int64_t length(std::int64_t index) const override { return listed_.length(index); }
  std::string decode(const Tokens&) const override { return ""; }
  Tokens encode(const std::string&) const override { return {}; }

 private:
  Listed listed_;
  Reads& reads_;
  std::int64_t bad_;
};

TEST(Rounds, RanksGetTheBatchesOfOneInTurn) {
  const std::vector<std::int64_t> lengths = random_lengths(137, 150, 5);
  for (const std::string& packing : kPackingNames) {
    for (const bool shuffle : {true, false}) {
      for (const bool repeat : {true, false}) {
        LoaderOptions options = options_for({2, 64, 8}, packing, 0, repeat);
        options.feed.shuffle = shuffle;
        expect_rounds([&] { return std::make_unique<Listed>(lengths); }, options);
        options.packer.truncate = true;
        expect_rounds([&] { return std::make_unique<Listed>(lengths); }, options);
      }
    }
  }
}

TEST(Rounds, DocumentsWithoutEndGoRoundToo) {
  for (const std::string& packing : kPackingNames) {
    expect_rounds([&] { return std::make_unique<Listed>(random_lengths(37, 150, 5), true); },
                  options_for({2, 64, 8}, packing));
    expect_rounds([] { return make_ping(1, 0, Part::training); }, options_for({2, 256, 8}, packing));
    expect_rounds([] { return make_ping(1, 90, Part::training); }, options_for({2, 256, 8}, packing));
  }
}

// Fewer pieces than ranks, empty documents, epochs that end within a round.
TEST(Rounds, FewDocumentsAreEnough) {
  for (const std::string& packing : kPackingNames) {
    for (const bool repeat : {true, false}) {
      for (const std::vector<std::int64_t>& lengths :
           {std::vector<std::int64_t>{5}, std::vector<std::int64_t>{0, 5, 1, 6, 7, 0, 17, 1},
            std::vector<std::int64_t>{9, 8, 0}})
        expect_rounds([&] { return std::make_unique<Listed>(lengths); }, options_for({1, 8, 8}, packing, 0, repeat));
    }
  }
}

TEST(Rounds, EvaluationComesOnceOverAllPieces) {
  config::Data data;
  expect_rounds([] { return std::make_unique<Listed>(random_lengths(200, 300, 7)); },
                evaluation_options(data, {2, 64, 16}));
}

TEST(Rounds, OnlyTheOwnDocumentsAreRead) {
  const std::vector<std::int64_t> lengths = random_lengths(400, 60, 5);
  for (const std::string& packing : kPackingNames) {
    for (const std::int64_t workers : {0, 2}) {
      for (std::int64_t rank = 0; rank < 4; ++rank) {
        Watched::Reads reads(lengths.size());
        LoaderOptions options = options_for({1, 64, 8}, packing, workers, false);
        options.rank = rank;
        options.ranks = 4;
        Loader loader(std::make_unique<Watched>(lengths, reads), options);
        Batch batch({1, 64, 8});
        std::set<std::int64_t> own;
        std::int64_t tokens = 0, pieces = 0;
        while (loader.next(batch)) {
          own.insert(batch.sources.begin(), batch.sources.end());
          tokens += batch.real_tokens;
          pieces += batch.documents;
        }
        EXPECT_LE(reads.tokens, tokens + pieces) << "a piece is read with the token that follows it";
        for (std::size_t d = 0; d < lengths.size(); ++d)
          EXPECT_EQ(reads.documents[d], own.contains(static_cast<std::int64_t>(d))) << packing << ' ' << d;
      }
    }
  }
}

// A damaged document is its rank's to find, after the batches before it; the others do not look at it.
TEST(Rounds, AnErrorComesToTheRankThatReads) {
  const std::vector<std::int64_t> lengths(60, 8);
  for (const std::int64_t workers : {0, 1, 3}) {
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      Watched::Reads reads(lengths.size());
      LoaderOptions options = options_for({2, 8, 8}, "pad", workers, false);
      options.feed.shuffle = false;
      options.rank = rank;
      options.ranks = 3;
      Loader loader(std::make_unique<Watched>(lengths, reads, 27),
                    options);  // in batch 13: the second of the fifth round
      Batch batch({2, 8, 8});
      for (int round = 0; round < 2; ++round) {
        int batches = 0;
        const auto read = [&] {
          while (loader.next(batch)) ++batches;
        };
        EXPECT_EQ(testing::error_of(read), rank == 1 ? "document 27 is broken" : "no error");
        EXPECT_EQ(testing::error_of(read), rank == 1 ? "document 27 is broken" : "no error") << "it stays";
        EXPECT_EQ(batches, rank == 1 ? 4 : 10);
        loader.restore({});
      }
    }
  }
}

TEST(Rounds, AnEpochIsTheSameForAnyNumberOfRanks) {
  const std::vector<std::int64_t> lengths = random_lengths(3000, 200, 4);
  LoaderOptions options = options_for({4, 64, 16}, "pack");
  Loader one(std::make_unique<Listed>(lengths), options);
  options.rank = 2;
  options.ranks = 4;
  Loader many(std::make_unique<Listed>(lengths), options);
  EXPECT_EQ(one.epoch()->batches, many.epoch()->batches);
  EXPECT_EQ(one.epoch()->pieces, many.epoch()->pieces);
  Batch batch({4, 64, 16});
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(one.next(batch));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(many.next(batch));
  EXPECT_GT(*many.epochs_read(), 0.01);
  EXPECT_EQ(*one.epochs_read(), *many.epochs_read());
}

}  // namespace
}  // namespace redline::data
