// Several ranks: the batches of one rank go round them, whatever the packing, and a rank reads no document but its own.
#include "data/rounds.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "base/error.h"
#include "data/from_config.h"
#include "data/generated.h"
#include "data/listed.h"

namespace redline::data {
namespace {

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

// A damaged document is its rank's to find, behind the batches before it; the others do not look at it.
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
        std::string sentence;
        try {
          while (loader.next(batch)) ++batches;
        } catch (const UserError& e) {
          sentence = e.what();
          EXPECT_THROW(loader.next(batch), UserError);
        }
        EXPECT_EQ(batches, rank == 1 ? 4 : 10);
        EXPECT_EQ(sentence, rank == 1 ? "document 27 is broken" : "");
        loader.restore({});
      }
    }
  }
}

TEST(Rounds, AStateOfOtherDataIsRefused) {
  const BatchShape shape{1, 16, 4};
  const std::vector<LoaderState> strangers = {
      {{.epoch = -1}, {}}, {{.position = -1}, {}}, {{.position = 3}, {}}, {{}, {{2, 0}}},
      {{}, {{-1, 0}}},     {{}, {{0, 5}}},         {{}, {{0, 4}}},        {{}, std::vector<PieceId>(65)}};
  LoaderOptions options = options_for(shape, "pack", 1);
  options.rank = 1;
  options.ranks = 2;
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
