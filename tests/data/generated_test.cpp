// Random tokens: full rows in which every token has a target, spread over the vocabulary, the same for the same seed.
#include "data/generated.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "data/from_config.h"
#include "data/listed.h"
#include "data/loader.h"

namespace redline::data {
namespace {

TEST(RandomTokens, FillsEveryRowAndUsesTheWholeVocabulary) {
  config::Data data;
  data.train = {"random:1000"};
  const BatchShape shape{.rows = 8, .seq_len = 512, .max_segments = 4};
  Loader loader(open_training_corpus(corpus_options(data)), options_for(shape, "pack")),
      again(open_training_corpus(corpus_options(data)), options_for(shape, "pack"));
  Loader held_out(open_held_out_corpus(corpus_options(data)), options_for(shape, "pack"));
  Batch batch(shape), same(shape), other(shape);
  std::vector<int> seen(1000);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(loader.next(batch));
    again.next(same);
    held_out.next(other);
    EXPECT_EQ(batch.pairs, shape.tokens());
    EXPECT_EQ(batch.documents, shape.rows);
    EXPECT_EQ(batch.tokens, same.tokens);
    EXPECT_NE(batch.tokens, other.tokens);
    for (const std::int32_t t : batch.tokens) ++seen.at(static_cast<std::size_t>(t));
  }
  const auto [least, most] = std::ranges::minmax(seen);  // 82 of each in the mean
  EXPECT_GT(least, 40);
  EXPECT_LT(most, 130);
}

TEST(RandomTokens, ANameWithoutAVocabularyIsRefused) {
  config::Data data;
  for (const char* name : {"random:", "random:x", "random:0", "random:-3", "random:5x"}) {
    data.train = {name};
    EXPECT_THROW(open_training_corpus(corpus_options(data)), UserError) << name;
  }
}

}  // namespace
}  // namespace redline::data
