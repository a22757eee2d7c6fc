// The choice of a token, and texts that are continued with a cache: the same as through the logits program.
#include "model/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/random.h"
#include "model/tiny.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using Tokens = std::vector<std::int32_t>;

std::int32_t choose(const std::vector<float>& logits, const ChoiceOptions& options, double u) {
  TokenChooser chooser;
  return chooser.choose(logits, options, u);
}

std::set<std::int32_t> all_choices(const std::vector<float>& logits, const ChoiceOptions& options) {
  std::set<std::int32_t> chosen;
  for (int i = 0; i < 1000; ++i) chosen.insert(choose(logits, options, i / 1000.0));
  return chosen;
}

TEST(ChooseToken, WithoutTemperatureTheLikeliestAndTheLowerIdOfATie) {
  const std::vector<float> logits = {1, 5, 2, 5};
  for (const double u : {0.0, 0.5, 0.999}) EXPECT_EQ(choose(logits, {.temperature = 0}, u), 1);
  EXPECT_EQ(all_choices(logits, {.temperature = 1, .top_k = 1}), std::set<std::int32_t>{1});
}

TEST(ChooseToken, FollowsTheDistribution) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const Random random(1, 2);
  std::vector<int> seen(3);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i)
    ++seen[static_cast<std::size_t>(choose(logits, {.temperature = 1}, random.uniform(static_cast<std::uint64_t>(i))))];
  EXPECT_NEAR(seen[0], kDraws / 8, 200);
  EXPECT_NEAR(seen[1], kDraws / 4, 250);
}

TEST(ChooseToken, TopKLeavesTheRestOut) {
  const std::vector<float> logits = {1, 1.1f, 0.9f, 1.2f};
  EXPECT_EQ(all_choices(logits, {.temperature = 1, .top_k = 2}), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(all_choices(logits, {.temperature = 1, .top_k = 1}), (std::set<std::int32_t>{3}));
  EXPECT_EQ(all_choices(logits, {.temperature = 1, .top_k = 9}).size(), 4u);
}

// Shares 0.5, 0.3, 0.15, 0.05, in another order.
TEST(ChooseToken, TopPKeepsTheFewestThatHoldTheShare) {
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f), std::log(0.3f)};
  const auto kept = [&](double top_p) { return all_choices(logits, {.temperature = 1, .top_p = top_p}); };
  EXPECT_EQ(kept(0), (std::set<std::int32_t>{1}));
  EXPECT_EQ(kept(0.4), (std::set<std::int32_t>{1}));
  EXPECT_EQ(kept(0.6), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(kept(0.9), (std::set<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(kept(0.97).size(), 4u);
  EXPECT_EQ(kept(1).size(), 4u);
  // The share is of what top-k left: 0.5 of 0.8 is more than 0.6.
  EXPECT_EQ(all_choices(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}), (std::set<std::int32_t>{1}));
}

// More likely tokens than are sorted at first.
TEST(ChooseToken, TopPOfAFlatDistribution) {
  const std::vector<float> flat(1000, 0.5f);
  const std::set<std::int32_t> kept = all_choices(flat, {.temperature = 1, .top_p = 0.5});
  EXPECT_EQ(*kept.rbegin(), 499);  // the lower ids of a tie
  EXPECT_EQ(kept.size(), 500u);
}

TEST(ChooseToken, PassesOverWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, -inf, 1, inf};
  for (const double temperature : {0.0, 1.0})
    EXPECT_EQ(all_choices(logits, {.temperature = temperature}), std::set<std::int32_t>{2});
}

constexpr std::int64_t kPositions = 24;

std::unique_ptr<Engine> make_engine(const config::Model& model, device::Device& device, std::int64_t texts,
                                    std::int64_t positions = kPositions) {
  LoweringOptions o;
  o.batch = {1, kPositions, 1};
  o.training = false;
  o.logits = true;
  o.decode = decode_shape(device.kind(), texts, std::max<std::int64_t>(positions / 2, 1), 1000, positions);
  auto engine = std::make_unique<Engine>(model, o, device);
  engine->initialise(3);
  return engine;
}

std::vector<float> last_logits(Engine& engine, const Tokens& text) {
  engine.upload(batch_of(engine.batch_shape(), {text}));
  const std::vector<float> all = engine.logits();
  const auto v = static_cast<std::size_t>(engine.model().vocab);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>((text.size() - 1) * v);
  return {first, first + static_cast<std::ptrdiff_t>(v)};
}

void expect_close(std::span<const float> got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5 * (1 + std::abs(want[i]))) << i;
}

class DecodingTest : public ::testing::TestWithParam<const Family*> {
 protected:
  config::Model model_ = tiny_model(std::string(GetParam()->name));
  device::CpuDevice device_{2};
};

TEST_P(DecodingTest, PlansHaveNoFaultAndNothingReadsWhatNobodyWrote) {
  const auto engine = make_engine(model_, device_, 2);
  EXPECT_EQ(program::check_plan(engine->programs()), std::vector<std::string>{});
  EXPECT_GT(engine->programs().memory.device.by_role[static_cast<int>(program::Role::cache)], 0);
  Decoding decoding(*engine);
  const Tokens text = random_document(1, 7, model_.vocab);
  const std::int64_t slots[] = {0, 1};
  std::vector<float> seen[2];
  for (const int poisoned : {0, 1}) {
    if (poisoned) engine->executor().poison_transients();
    const auto prompt = decoding.prefill(text, slots);
    seen[poisoned].assign(prompt.begin(), prompt.end());
    if (poisoned) engine->executor().poison_transients();
    const auto next = decoding.step(Tokens{1, 2});
    seen[poisoned].insert(seen[poisoned].end(), next.begin(), next.end());
  }
  EXPECT_EQ(seen[0], seen[1]);
}

// Every step's logits are those of the whole text; a slot that gets no token keeps its text.
TEST_P(DecodingTest, StepsAreTheLogitsOfTheWholeText) {
  const auto engine = make_engine(model_, device_, 3);
  Decoding decoding(*engine);
  const auto v = static_cast<std::size_t>(model_.vocab);
  Tokens texts[] = {random_document(1, 5, model_.vocab), random_document(2, 1, model_.vocab),
                    random_document(1, 5, model_.vocab)};
  const std::int64_t first[] = {0, 2}, second[] = {1};
  expect_close(decoding.prefill(texts[0], first), last_logits(*engine, texts[0]));
  expect_close(decoding.prefill(texts[1], second), last_logits(*engine, texts[1]));
  const Random random(4, 4);
  for (std::uint64_t i = 0; i < 12; ++i) {
    Tokens next(3, Decoding::kNoToken);
    for (std::size_t s = 0; s < 3; ++s) {
      if (s == i % 4) continue;  // waits
      next[s] = static_cast<std::int32_t>(random.below(10 * i + s, v));
      texts[s].push_back(next[s]);
    }
    const auto step = decoding.step(next);
    const std::vector<float> logits(step.begin(), step.end());
    for (std::size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(decoding.length(static_cast<std::int64_t>(s)), static_cast<std::int64_t>(texts[s].size()));
      if (next[s] != Decoding::kNoToken)
        expect_close(std::span(logits).subspan(s * v, v), last_logits(*engine, texts[s]));
    }
  }
}

TEST_P(DecodingTest, GreedyTextIsThatOfTheLogitsProgram) {
  const auto engine = make_engine(model_, device_, 1);
  Decoding decoding(*engine);
  Tokens text = random_document(9, 4, model_.vocab);
  const std::vector<Tokens> prompts = {text};
  const GenerateOptions options{.tokens = kPositions - 4, .choice = {.temperature = 0}};
  const Generated g = generate(decoding, prompts, options, {});
  Tokens want;
  TokenChooser chooser;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    want.push_back(chooser.choose(last_logits(*engine, text), options.choice, 0));
    text.push_back(want.back());
  }
  EXPECT_EQ(g.texts[0].tokens, want);
  EXPECT_FALSE(g.texts[0].ended);
  EXPECT_EQ(g.figures.prompt_tokens, 4);
  EXPECT_EQ(g.figures.steps, options.tokens - 1);  // the first token comes from the prompt
}

// A text is the same whatever is written beside it, in however many rounds.
TEST_P(DecodingTest, ATextDoesNotDependOnHowManyThereAre) {
  const GenerateOptions options{.tokens = 30, .choice = {.temperature = 1, .top_k = 20, .top_p = 0.9}, .seed = 6};
  const Tokens prompt = random_document(5, 3, model_.vocab);
  std::vector<std::vector<Continuation>> by_count;
  for (const std::size_t count : {1u, 3u, 11u}) {
    const auto engine = make_engine(model_, device_, static_cast<std::int64_t>(count), 16);  // the text outgrows it
    Decoding decoding(*engine);
    by_count.push_back(generate(decoding, std::vector<Tokens>(count, prompt), options, {}).texts);
  }
  for (const auto& texts : by_count)
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i].tokens, by_count.back()[i].tokens) << i << " of " << texts.size();
      EXPECT_EQ(texts[i].tokens.size(), 30u);
    }
  EXPECT_NE(by_count.back()[0].tokens, by_count.back()[1].tokens);
}

TEST_P(DecodingTest, EndsAtAStopTokenAndWhereTheListenerSaysSo) {
  const auto engine = make_engine(model_, device_, 2);
  Decoding decoding(*engine);
  const std::vector<Tokens> prompts = {random_document(1, 3, model_.vocab), random_document(2, 6, model_.vocab)};
  GenerateOptions options{.tokens = 15, .choice = {.temperature = 1}, .seed = 1};
  const Generated whole = generate(decoding, prompts, options, {});
  const std::int32_t stop = whole.texts[0].tokens[5];
  const auto expected = [&](const Tokens& tokens) { return Tokens(tokens.begin(), std::ranges::find(tokens, stop)); };
  options.stop_tokens = {stop};
  const Generated stopped = generate(decoding, prompts, options, {});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(stopped.texts[i].tokens, expected(whole.texts[i].tokens));
  EXPECT_TRUE(stopped.texts[0].ended);

  options.stop_tokens.clear();
  std::vector<Tokens> heard(2);
  const Generated cut = generate(decoding, prompts, options, [&](std::size_t i, std::int32_t token) {
    heard[i].push_back(token);
    return i != 1 || heard[i].size() < 4;
  });
  EXPECT_EQ(cut.texts[0].tokens, whole.texts[0].tokens);
  EXPECT_EQ(cut.texts[1].tokens, Tokens(whole.texts[1].tokens.begin(), whole.texts[1].tokens.begin() + 4));
  EXPECT_EQ(heard[0], cut.texts[0].tokens);
  EXPECT_EQ(heard[1], cut.texts[1].tokens);
}

TEST_P(DecodingTest, FewPositionsAreEnough) {
  for (const std::int64_t positions : {1, 2, 3}) {
    const auto engine = make_engine(model_, device_, 1, positions);
    Decoding decoding(*engine);
    const Generated g = generate(decoding, std::vector<Tokens>{{5}}, {.tokens = 7, .choice = {.temperature = 0}}, {});
    EXPECT_EQ(g.texts[0].tokens.size(), positions == 1 ? 1u : 7u);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecodingTest, ::testing::ValuesIn(families()),
                         [](const auto& instance) { return std::string(instance.param->name); });

}  // namespace
}  // namespace redline::model
