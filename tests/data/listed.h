// Documents of given lengths, and what must hold of batches and of those of several ranks, whatever they are made from:
// shared by the tests of the loader.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/from_config.h"
#include "data/loader.h"

namespace redline::data {

using Tokens = std::vector<std::int32_t>;

// Documents of given lengths. Tokens name their place: document * 10000 + position.
class Listed final : public DocumentSource {
 public:
  explicit Listed(std::vector<std::int64_t> lengths, bool endless = false)
      : lengths_(std::move(lengths)), endless_(endless) {}
  std::string name() const override { return "listed"; }
  std::int64_t documents() const override { return endless_ ? 0 : static_cast<std::int64_t>(lengths_.size()); }
  std::uint64_t fingerprint() const override { return 0; }
  std::int64_t vocabulary() const override { return 1 << 30; }
  void read(std::int64_t index, Tokens& tokens) const override {
    tokens.clear();
    for (std::int64_t i = 0; i < length(index); ++i) tokens.push_back(static_cast<std::int32_t>(index * 10000 + i));
  }
  std::int64_t length(std::int64_t index) const override {
    return lengths_[static_cast<std::size_t>(index) % lengths_.size()];
  }
  std::string decode(const Tokens&) const override { return ""; }
  Tokens encode(const std::string&) const override { return {}; }

 private:
  std::vector<std::int64_t> lengths_;
  bool endless_;
};

inline std::unique_ptr<Corpus> training_corpus(const config::Data& data) {
  return open_training_corpus(corpus_options(data));
}
inline std::unique_ptr<Corpus> held_out_corpus(const config::Data& data) {
  return open_held_out_corpus(corpus_options(data));
}

inline std::vector<std::int64_t> random_lengths(std::size_t count, std::uint64_t most, std::uint64_t seed) {
  std::vector<std::int64_t> lengths;
  const Random random(seed, 0);
  for (std::size_t i = 0; i < count; ++i) lengths.push_back(static_cast<std::int64_t>(1 + random.below(i, most)));
  return lengths;
}

// What must hold in every batch, whatever it was made from.
inline void expect_whole(const Batch& b, std::int64_t longest) {
  std::int64_t pairs = 0, scores = 0;
  ASSERT_LE(b.documents, b.shape.documents());
  ASSERT_EQ(b.doc_offsets[0], 0);
  for (std::int64_t d = 0; d < b.documents; ++d) {
    const std::int64_t begin = b.doc_offsets[static_cast<std::size_t>(d)],
                       end = b.doc_offsets[static_cast<std::size_t>(d) + 1];
    ASSERT_LT(begin, end);
    ASSERT_LE(end - begin, longest);
    scores += (end - begin) * (end - begin + 1) / 2;
    ASSERT_NE(b.targets[static_cast<std::size_t>(begin)], kNoTarget) << "a piece that nothing can be learnt from";
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

inline bool same(const Batch& a, const Batch& b) {
  return a.tokens == b.tokens && a.targets == b.targets && a.positions == b.positions &&
         a.doc_offsets == b.doc_offsets && a.documents == b.documents && a.real_tokens == b.real_tokens &&
         a.pairs == b.pairs && a.score_pairs == b.score_pairs && a.sources == b.sources;
}

inline LoaderOptions options_for(BatchShape shape, const std::string& packing, std::int64_t workers = 0,
                                 bool repeat = true) {
  LoaderOptions o;
  o.packer = {shape, packing_named(packing)};
  o.feed.repeat = repeat;
  o.workers = workers;
  o.prefetch = 3;
  return o;
}

// Reads straight ahead, then from saved states and again from states of that, with several numbers of workers: the
// batches and states must be the same to the bit.
inline void expect_goes_on(const std::function<std::unique_ptr<Corpus>()>& corpus, LoaderOptions options) {
  const BatchShape shape = options.packer.shape;
  constexpr int kBatches = 40;
  std::vector<Batch> batches;
  std::vector<LoaderState> states;
  options.workers = 0;
  Loader straight(corpus(), options);
  for (int i = 0; i < kBatches; ++i) {
    states.push_back(straight.state());
    batches.emplace_back(shape);
    ASSERT_TRUE(straight.next(batches.back()));
  }
  for (const std::int64_t workers : {0, 1, 3}) {
    options.workers = workers;
    options.prefetch = 1 + 2 * workers;
    Loader jumping(corpus(), options);
    Batch batch(shape);
    const auto expect_batch = [&](std::size_t at) {
      ASSERT_TRUE(jumping.next(batch));
      EXPECT_TRUE(same(batch, batches[at])) << "batch " << at << " with " << workers << " workers";
      if (at + 1 < states.size()) {
        EXPECT_TRUE(jumping.state() == states[at + 1]) << at;
      }
    };
    for (std::size_t at = 0; at < batches.size(); ++at) expect_batch(at);
    const Random random(9, 9);
    for (std::uint64_t trial = 0; trial < 8; ++trial) {
      std::size_t at = random.below(trial, kBatches - 4);
      jumping.restore(states[at]);
      EXPECT_TRUE(jumping.state() == states[at]);
      for (int i = 0; i < 3; ++i, ++at) expect_batch(at);
      jumping.restore(LoaderState(jumping.state()));
      expect_batch(at);
    }
  }
}

inline const std::vector<std::string> kPackingNames = {"pack", "stream", "bucket", "pad"};

// The batches of one rank, some of them or all, and the state after each (and before the first).
struct Straight {
  std::vector<Batch> batches;
  std::vector<LoaderState> states;
};
inline Straight read_straight(std::unique_ptr<Corpus> corpus, LoaderOptions options, std::size_t most) {
  options.workers = 0;
  options.rank = 0;
  options.ranks = 1;
  Loader loader(std::move(corpus), options);
  Straight all;
  all.states.push_back(loader.state());
  for (Batch batch(options.packer.shape); all.batches.size() < most && loader.next(batch);) {
    all.batches.push_back(batch);
    all.states.push_back(loader.state());
  }
  return all;
}

// Rank r of W gets batches r, r + W, ... of those that one rank gets, with the state after each round; where the
// documents end the last batches of a round are empty. Any rank goes on from the state of any number of ranks.
inline void expect_rounds(const std::function<std::unique_ptr<Corpus>()>& corpus, LoaderOptions options) {
  constexpr std::size_t kBatches = 60;  // a multiple of all the numbers of ranks: with `repeat` no round is cut
  const Straight one = read_straight(corpus(), options, options.feed.repeat ? kBatches : std::size_t{1} << 30);
  const std::size_t count = one.batches.size();
  ASSERT_GT(count, 0u);
  for (const std::size_t ranks : {1u, 2u, 3u, 4u, 5u}) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      options.rank = static_cast<std::int64_t>(rank);
      options.ranks = static_cast<std::int64_t>(ranks);
      options.workers = static_cast<std::int64_t>((rank + ranks) % 3);
      Loader loader(corpus(), options);
      Batch batch(options.packer.shape);
      const auto expect_round = [&](std::size_t first) {  // the batches before it
        ASSERT_TRUE(loader.next(batch)) << first;
        if (first + rank < count) {
          EXPECT_TRUE(same(batch, one.batches[first + rank])) << "batch " << first + rank << ", " << ranks << " ranks";
        } else {
          EXPECT_EQ(batch.documents, 0);
          EXPECT_EQ(batch.real_tokens, 0);
        }
        EXPECT_TRUE(loader.state() == one.states[std::min(first + ranks, count)]) << first << ", rank " << rank;
      };
      for (std::size_t first = 0; first < count; first += ranks) expect_round(first);
      if (!options.feed.repeat) {
        EXPECT_FALSE(loader.next(batch));
        EXPECT_EQ(batch.documents, 0);
        EXPECT_TRUE(loader.state() == one.states.back());
        EXPECT_FALSE(loader.next(batch));
      }
      for (const std::size_t at : {count / 2, std::size_t{1}, count / 3}) {  // of another number of ranks
        if (options.feed.repeat && at + 2 * ranks > count) continue;
        loader.restore(one.states[at]);
        EXPECT_TRUE(loader.state() == one.states[at]);
        for (std::size_t first = at; first < std::min(at + 2 * ranks, count); first += ranks) expect_round(first);
      }
    }
  }
}

}  // namespace redline::data
