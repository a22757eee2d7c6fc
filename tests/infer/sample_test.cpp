// Sampling: the choice of a token, and text from a model that is read as its own.
#include "infer/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "testing/temp_folder.h"

namespace redline::infer {
namespace {

TEST(ChooseToken, WithoutTemperatureTheLikeliestAndTheLowerIdOfATie) {
  const std::vector<float> logits = {1, 5, 2, 5};
  for (const double u : {0.0, 0.5, 0.999}) EXPECT_EQ(choose_token(logits, 0, 0, u), 1);
}

TEST(ChooseToken, FollowsTheDistribution) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const Random random(1, 2);
  std::vector<int> seen(3);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    ++seen[static_cast<std::size_t>(choose_token(logits, 1, 0, random.uniform(static_cast<std::uint64_t>(i))))];
  EXPECT_NEAR(seen[0], kDraws / 8, 200);
  EXPECT_NEAR(seen[1], kDraws / 4, 250);
}

TEST(ChooseToken, TopKLeavesTheRestOut) {
  const std::vector<float> logits = {1, 1.1f, 0.9f, 1.2f};
  for (int i = 0; i < 100; ++i) {
    const std::int32_t token = choose_token(logits, 1, 2, i / 100.0);
    EXPECT_TRUE(token == 1 || token == 3) << token;
    EXPECT_EQ(choose_token(logits, 1, 1, i / 100.0), 3);
  }
}

TEST(ChooseToken, PassesOverWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(choose_token(std::vector<float>{nan, -inf, 1, nan}, 1, 0, i / 10.0), 2);
}

Checkpoint fixture() { return open_checkpoint(real_files(), Path(REDLINE_SOURCE_DIR) / "tests/fixtures/llama-mha"); }

TEST(Sample, IsTheSameForTheSameSeedAndGoesPastTheWindow) {
  Checkpoint checkpoint = fixture();
  checkpoint.max_positions = 8;
  device::CpuDevice device(1);
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  const SampleOptions options{.tokens = 20, .temperature = 1, .top_k = 10, .seed = 3, .end_token = {}};
  std::vector<std::int32_t> heard;
  const Sample a = sample(checkpoint, prompt, options, device, [&](std::int32_t t) { heard.push_back(t); });
  const Sample b = sample(checkpoint, prompt, options, device, {});
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.tokens, heard);
  EXPECT_TRUE(a.ended || a.tokens.size() == 20u);
}

TEST(Checkpoint, AFolderWithoutAModelIsRefused) {
  const testing::TempFolder folder;
  EXPECT_THROW(open_checkpoint(real_files(), folder.path()), UserError);
  EXPECT_THROW(open_checkpoint(real_files(), folder / "nothing"), UserError);
}

TEST(Vocabulary, KnowsBytesAndRefusesTokensOutsideTheModel) {
  Checkpoint checkpoint = fixture();
  checkpoint.model.vocab = 257;
  const Vocabulary plain(real_files(), checkpoint);
  EXPECT_EQ(plain.encode("a<"), (std::vector<std::int32_t>{'a', '<'}));
  EXPECT_EQ(plain.end_token(), 256);
  EXPECT_EQ(plain.decode(std::vector<std::int32_t>{'h', 'i'}), "hi");
  checkpoint.model.vocab = 100;
  EXPECT_THROW(Vocabulary(real_files(), checkpoint).encode("z"), UserError);
  checkpoint.model.vocab = 1000;
  EXPECT_GT(Vocabulary(real_files(), checkpoint).encode("<begin>")[0], 256);
}

// A folder that brings its tokenizer is read and written with it.
TEST(Vocabulary, IsTheTokenizerOfTheFolder) {
  const testing::TempFolder folder;
  Checkpoint checkpoint = fixture();
  const Path tokenizers = Path(REDLINE_SOURCE_DIR) / "tests/fixtures/tokenizers";
  std::filesystem::copy_file(tokenizers / "gpt2.tokenizer.json", folder / "tokenizer.json");
  checkpoint.folder = folder.path();
  checkpoint.model.vocab = 1 << 20;
  const Vocabulary vocabulary(real_files(), checkpoint);
  const std::vector<std::int32_t> ids = vocabulary.encode("Hello, world");
  EXPECT_EQ(vocabulary.decode(ids), "Hello, world");
  EXPECT_EQ(ids, data::open_tokenizer((folder / "tokenizer.json").string(), "test")->encode("Hello, world"));
}

}  // namespace
}  // namespace redline::infer
