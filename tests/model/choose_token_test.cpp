// The choice of a token: the likeliest, the distribution, and what top-k and top-p leave of it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/random.h"
#include "model/generate.h"

namespace redline::model {
namespace {

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

}  // namespace
}  // namespace redline::model
