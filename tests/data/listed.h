// Documents of given lengths, and what must hold in every batch: shared by the tests of the loader.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
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

}  // namespace redline::data
