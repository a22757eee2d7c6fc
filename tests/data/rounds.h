// What must hold of batches on several ranks, whatever they are made from: shared by the tests of the loader.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "data/listed.h"

namespace redline::data {

// The batches of one rank, some of them or all, and the state behind each (and before the first).
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

// Rank r of W gets batches r, r + W, ... of those that one rank gets, with the state behind each round; where the
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
