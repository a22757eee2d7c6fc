// Sources mixed by shares of tokens: the shares are exact, and batches and states are the same for any number of
// workers and ranks.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "data/from_config.h"
#include "data/generated.h"
#include "data/listed.h"
#include "testing/temp_folder.h"

namespace redline::data {
namespace {

std::unique_ptr<Corpus> mixture_of(const std::vector<double>& weights, std::vector<std::unique_ptr<Corpus>> corpora) {
  std::vector<Mixture::Part> parts;
  for (std::size_t i = 0; i < corpora.size(); ++i)
    parts.push_back({fmt::format("source {}", i), weights[i], std::move(corpora[i])});
  return std::make_unique<Mixture>(std::move(parts), 0);
}

// A small source that repeats, one with many documents, and one of long ones.
std::unique_ptr<Corpus> listed_mixture() {
  std::vector<std::unique_ptr<Corpus>> corpora;
  corpora.push_back(std::make_unique<Listed>(random_lengths(7, 60, 1)));
  corpora.push_back(std::make_unique<Listed>(random_lengths(90, 200, 2)));
  corpora.push_back(std::make_unique<Listed>(random_lengths(5, 3000, 3)));
  return mixture_of({0.5, 0.2, 0.3}, std::move(corpora));
}

void write(const Path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string json_lines(int documents, const std::string& word) {
  std::string text;
  for (int i = 0; i < documents; ++i) {
    text += "{\"text\":\"";
    for (int k = 0; k < 1 + i * 7 % 23; ++k) text += fmt::format("{} {} ", word, i);
    text += "\"}\n";
  }
  return text;
}

TEST(MixtureSchedule, NoSourceIsEverAheadOfItsShareByMoreThanAPiece) {
  const Random random(5, 0);
  for (const std::vector<double>& weights :
       {std::vector{0.7, 0.3}, std::vector{1.0, 1.0, 1.0}, std::vector{1e-6, 1.0}, std::vector{5.0, 3.0, 1.0, 0.5}}) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    constexpr std::int64_t kLongest = 1000;
    MixtureSchedule mixing(weights);
    std::int64_t all = 0;
    for (std::uint64_t i = 0; i < 20000; ++i) {
      const std::size_t source = mixing.next();
      const auto tokens = static_cast<std::int64_t>(2 + random.below(i, kLongest - 1));
      mixing.drew(source, tokens);
      all += tokens;
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const double ahead = static_cast<double>(mixing.tokens(s)) - weights[s] / sum * static_cast<double>(all);
        ASSERT_LE(ahead, kLongest + 1);
        ASSERT_GE(ahead, -static_cast<double>(weights.size()) * kLongest);
      }
    }
  }
}

// A run of ten trillion tokens: the products are far beyond 64 bits.
TEST(MixtureSchedule, IsExactWhereProductsAreNot) {
  MixtureSchedule mixing({0.7, 0.3});
  LoaderState state;
  state.sources = {{{}, 7'000'000'000'000}, {{}, 3'000'000'000'000}};
  ASSERT_TRUE(mixing.fits(state));
  mixing.restore(state);
  std::vector<int> turns(2);
  for (int i = 0; i < 10'000; ++i) {
    const std::size_t source = mixing.next();
    ++turns[source];
    mixing.drew(source, 1'000'000);
  }
  EXPECT_NEAR(turns[0], 7000, 20);  // the shares of so many tokens are right to 1e-9, which is 10,000 of them
}

TEST(MixtureSchedule, AStateOfOtherSourcesDoesNotFit) {
  const MixtureSchedule two({1, 1}), one;
  LoaderState state;
  EXPECT_TRUE(two.fits(state));
  EXPECT_TRUE(one.fits(state));
  state.next.position = 3;
  EXPECT_FALSE(two.fits(state));
  EXPECT_TRUE(one.fits(state));
  state = {};
  state.sources.resize(2);
  EXPECT_TRUE(two.fits(state));
  EXPECT_FALSE(one.fits(state));
  state.waiting = {{0, 0, 2}};
  EXPECT_FALSE(two.fits(state));
  state.waiting = {{0, 0, 1}};
  state.sources[0].tokens = -1;
  EXPECT_FALSE(two.fits(state));
}

TEST(Mixture, EachSourceHasItsShareOfTheTokens) {
  for (const std::string& packing : kPackingNames) {
    const BatchShape shape{4, 128, 16};
    Loader loader(listed_mixture(), options_for(shape, packing, 2));
    Batch batch(shape);
    for (int i = 1; i <= 300; ++i) {
      ASSERT_TRUE(loader.next(batch));
      expect_whole(batch, 128);
      const std::vector<SourceShare> shares = loader.shares();
      const double all = static_cast<double>(shares[0].tokens + shares[1].tokens + shares[2].tokens);
      ASSERT_NEAR(shares[0].share, 0.5, 128 / all);
      ASSERT_NEAR(shares[1].share, 0.2, 128 / all);
      ASSERT_NEAR(shares[2].share, 0.3, 128 / all);
    }
    const std::vector<SourceShare> shares = loader.shares();
    EXPECT_EQ(shares[1].name, "source 1");
    EXPECT_GT(*shares[0].epochs, 20) << packing;  // 7 short documents, read again and again
    EXPECT_FALSE(loader.epochs_read() || loader.epoch() || loader.epoch_size());
  }
}

// The tokens that were trained on, too, but for the pieces that wait in the packer.
TEST(Mixture, BatchesHoldTheShares) {
  const BatchShape shape{4, 128, 16};
  Loader loader(listed_mixture(), options_for(shape, "stream"));
  Batch batch(shape);
  std::vector<std::int64_t> tokens(3);
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(loader.next(batch));
    for (std::int64_t d = 0; d < batch.documents; ++d) {
      const auto at = static_cast<std::size_t>(d);
      tokens[static_cast<std::size_t>(batch.sources[at] % 3)] += batch.doc_offsets[at + 1] - batch.doc_offsets[at];
    }
  }
  const double all = static_cast<double>(tokens[0] + tokens[1] + tokens[2]);
  EXPECT_NEAR(static_cast<double>(tokens[0]) / all, 0.5, 0.005);
  EXPECT_NEAR(static_cast<double>(tokens[1]) / all, 0.2, 0.005);
}

TEST(Mixture, ASmallSourceIsShuffledAnewEachEpoch) {
  std::vector<std::unique_ptr<Corpus>> corpora;
  for (int i = 0; i < 2; ++i) corpora.push_back(std::make_unique<Listed>(std::vector<std::int64_t>(50, 10)));
  const BatchShape shape{1, 10, 1};
  Loader loader(mixture_of({1, 1}, std::move(corpora)), options_for(shape, "stream"));
  Batch batch(shape);
  std::vector<std::vector<std::int64_t>> order(2);
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(loader.next(batch));
    order[static_cast<std::size_t>(batch.sources[0] % 2)].push_back(batch.sources[0] / 2);
  }
  for (const auto& of : order) {
    ASSERT_EQ(of.size(), 100u);
    const std::vector<std::int64_t> first(of.begin(), of.begin() + 50), second(of.begin() + 50, of.end());
    EXPECT_EQ(std::set(first.begin(), first.end()).size(), 50u);
    EXPECT_EQ(std::set(second.begin(), second.end()).size(), 50u);
    EXPECT_NE(first, second);
  }
  EXPECT_NE(order[0], order[1]);  // each has an order of its own
}

TEST(Mixture, GoesOnFromASavedStateBitForBitWithAnyNumberOfWorkers) {
  for (const std::string& packing : kPackingNames) expect_goes_on(listed_mixture, options_for({4, 64, 8}, packing));
}

TEST(Mixture, RanksShareTheBatchesOfOne) {
  for (const std::string& packing : kPackingNames) expect_rounds(listed_mixture, options_for({2, 64, 8}, packing));
  expect_rounds(listed_mixture, options_for({2, 64, 8}, "pack", 0, false));
}

// A stream, documents with random access and documents without end; every rank reads all of them.
TEST(Mixture, StreamsAndDocumentsWithoutEndTakePart) {
  const testing::TempFolder folder;
  write(folder.path() / "a.jsonl", json_lines(60, "stream"));
  const auto corpus = [&] {
    config::Data data;
    data.tokenizer = "bytes";
    data.train = {(folder.path() / "a.jsonl").string()};
    data.eval = data.train;
    std::vector<std::unique_ptr<Corpus>> corpora;
    corpora.push_back(training_corpus(data));
    corpora.push_back(std::make_unique<Listed>(random_lengths(20, 100, 4)));
    corpora.push_back(make_ping(1, 0, Part::training));
    return mixture_of({3, 2, 1}, std::move(corpora));
  };
  LoaderOptions options = options_for({2, 64, 8}, "pack");
  options.feed.shuffle_buffer = 16;
  expect_goes_on(corpus, options);
  expect_rounds(corpus, options);
  Loader loader(corpus(), options);
  Batch batch({2, 64, 8});
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(loader.next(batch));
  const std::vector<SourceShare> shares = loader.shares();
  EXPECT_NEAR(shares[0].share, 0.5, 0.01);
  EXPECT_NEAR(shares[2].share, 1.0 / 6, 0.01);
  EXPECT_GT(*shares[0].epochs, 1);
  EXPECT_FALSE(shares[2].epochs);
}

TEST(Mixture, EndsWithTheFirstSourceThatHasNoneLeftWhereDocumentsComeOnce) {
  std::vector<std::unique_ptr<Corpus>> corpora;
  corpora.push_back(std::make_unique<Listed>(std::vector<std::int64_t>(10, 10)));
  corpora.push_back(std::make_unique<Listed>(std::vector<std::int64_t>(1000, 10)));
  const BatchShape shape{1, 10, 1};
  Loader loader(mixture_of({1, 2}, std::move(corpora)), options_for(shape, "pack", 1, false));
  Batch batch(shape);
  int batches = 0;
  while (loader.next(batch)) ++batches;
  EXPECT_NEAR(batches, 30, 3);
}

TEST(Mixture, ConfigurationsOpenThem) {
  const testing::TempFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  write(path("a.jsonl"), json_lines(200, "one"));
  write(path("b.txt"), std::string(5000, 'b'));
  config::Data data;
  data.train = {path("a.jsonl"), path("b.txt")};
  data.tokenizer = "bytes";
  data.weights = {3, 1};
  const auto training = training_corpus(data), held_out = held_out_corpus(data);
  EXPECT_EQ(training->name(), "a mixture of a.jsonl (75%) and b.txt (25%)");
  EXPECT_EQ(training->files().size(), 2u);
  EXPECT_EQ(data_tokenizer(corpus_options(data)), "bytes");
  EXPECT_TRUE(training->bytes_of_ids());
  EXPECT_NE(training->fingerprint(), held_out->fingerprint());  // a part of each is held out

  data.weights = {1};
  EXPECT_THROW(training_corpus(data), UserError);
  data.weights = {1, 1};
  data.train = {path("b.txt"), "ping"};  // of two tokenizers
  EXPECT_THROW(training_corpus(data), UserError);
  EXPECT_EQ(names_of_entries({"x/a", "y/b/"}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names_of_entries({"x/a", "y/a"}), (std::vector<std::string>{"x/a", "y/a"}));
  EXPECT_EQ(names_of_entries({"a", "a"}), (std::vector<std::string>{"a#1", "a#2"}));
}

TEST(HeldOutSets, EntriesWithNamesAreSetsOfTheirOwn) {
  config::Data data;
  EXPECT_EQ(held_out_sets(corpus_options(data)).size(), 1u);
  data.eval = {"web=a.txt", "b.txt", "code-2_x=c=d", "web=e.txt", "./f=g", "two words=x"};
  const std::vector<HeldOutSet> sets = held_out_sets(corpus_options(data));
  ASSERT_EQ(sets.size(), 3u);
  EXPECT_EQ(sets[0].name, "web");
  EXPECT_EQ(sets[0].corpus.eval, (std::vector<std::string>{"a.txt", "e.txt"}));
  EXPECT_EQ(sets[1].name, "eval");
  EXPECT_EQ(sets[1].corpus.eval, (std::vector<std::string>{"b.txt", "./f=g", "two words=x"}));
  EXPECT_EQ(sets[2].name, "code-2_x");
  EXPECT_EQ(sets[2].corpus.eval, (std::vector<std::string>{"c=d"}));
  data.eval = {"web="};
  EXPECT_THROW(held_out_sets(corpus_options(data)), UserError);

  data.eval = {"web=a.txt", "./f=g", "p=ping"};
  const config::Data absolute = with_absolute_paths(data);
  EXPECT_TRUE(absolute.eval[0].starts_with("web=/")) << absolute.eval[0];
  EXPECT_TRUE(absolute.eval[1].starts_with("/") && absolute.eval[1].ends_with("f=g")) << absolute.eval[1];
  EXPECT_EQ(absolute.eval[2], "p=ping");
  EXPECT_EQ(with_absolute_paths(absolute).eval, absolute.eval);
}

}  // namespace
}  // namespace redline::data
