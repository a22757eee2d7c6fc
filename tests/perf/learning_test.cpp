// Each illness of learning is found in a curve that has it, and in no curve that does not.
#include "perf/learning.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "optim/schedule.h"
#include "perf/machines.h"
#include "testing/says.h"

namespace redline::perf {
namespace {

using testing::says;
using train::Illness;

constexpr std::int64_t kRunSteps = 1000;

config::Config config_with(std::vector<std::string> settings = {}) {
  settings.insert(settings.begin(), {"train.max_steps=1000", "train.eval_every=100", "train.batch_size=64"});
  return config_of("quick", settings);
}

// A run as it should be: the loss falls by a power of the step, with noise, and the held-out loss with it.
Learned healthy(const config::Config& config) {
  const Random random(1, 2);
  Learned l;
  l.steps_of_run = kRunSteps;
  for (std::int64_t step = 1; step <= kRunSteps; ++step) {
    const double mean = 2 + 4 * std::pow(static_cast<double>(step), -0.3);
    const auto noise = [&](std::uint64_t n) { return random.uniform(2 * static_cast<std::uint64_t>(step) + n) - 0.5; };
    l.steps.push_back(step);
    l.loss.push_back(mean + 0.1 * noise(0));
    l.grad_norm.push_back(2 + noise(1));
    l.rate.push_back(optim::learning_rate(config, step - 1, kRunSteps, 1));
    if (step % 100 == 0) l.held_out.emplace_back(step, mean + 0.02);
  }
  return l;
}

std::vector<Illness> found(const std::vector<LearningIllness>& all) {
  std::vector<Illness> illnesses;
  for (const LearningIllness& f : all) {
    illnesses.push_back(f.illness);
    EXPECT_FALSE(f.found.empty());
    EXPECT_FALSE(f.costs.empty());
    EXPECT_GE(f.share, 0);
    EXPECT_LE(f.share, 1);
  }
  return illnesses;
}
using Illnesses = std::vector<Illness>;
constexpr std::int64_t kParameters = 5'000'000;

TEST(Learning, AHealthyRunHasNone) {
  for (const char* schedule : {"cosine", "constant", "linear", "wsd"}) {
    const config::Config c = config_with({fmt::format("optim.schedule={}", schedule)});
    EXPECT_EQ(found(illnesses_of_learning(c, healthy(c), kParameters)), Illnesses{}) << schedule;
    EXPECT_EQ(found(illnesses_of_learning(c, {}, kParameters)), Illnesses{}) << "before it has begun";
  }
}

TEST(Learning, ARateOfZeroOrFarTooHigh) {
  const config::Config none = config_with({"optim.lr=0", "optim.min_lr=0"});
  const auto all = illnesses_of_learning(none, {}, kParameters);
  ASSERT_EQ(found(all), Illnesses{Illness::rate});
  EXPECT_TRUE(says(all[0].found, {"optim.lr"}));
  EXPECT_EQ(all[0].share, 1);
  EXPECT_EQ(found(illnesses_of_learning(config_with({"optim.lr=0.5"}), {}, kParameters)), Illnesses{Illness::rate});
  const config::Config c = config_with();
  Learned l = healthy(c);
  for (double& rate : l.rate) rate = 0;
  EXPECT_EQ(found(illnesses_of_learning(c, l, kParameters)), Illnesses{Illness::rate}) << "as it was recorded";
}

TEST(Learning, NothingButWarmUp) {
  const config::Config c = config_with({"optim.warmup_steps=1000"});
  for (const Learned& l : {Learned{}, healthy(c)}) {
    const auto all = illnesses_of_learning(c, l, kParameters);
    ASSERT_EQ(found(all), Illnesses{Illness::all_warm_up});
    EXPECT_EQ(all[0].changes, std::vector<std::string>{"optim.warmup_steps=50"});
  }
}

TEST(Learning, ASpikeIsFoundWhereverItIs) {
  const config::Config c = config_with();
  for (const std::size_t step : {119u, 999u}) {
    Learned l = healthy(c);
    l.grad_norm[step] = 55.9;
    const auto all = illnesses_of_learning(c, l, kParameters);
    ASSERT_EQ(found(all), Illnesses{Illness::gradient_spike});
    EXPECT_TRUE(says(all[0].found, {"55.9", fmt::format("step {}", step + 1)}));
  }
  Learned first = healthy(c);
  first.grad_norm[0] = 55.9;
  EXPECT_EQ(found(illnesses_of_learning(c, first, kParameters)), Illnesses{}) << "first steps are large in any run";
}

TEST(Learning, APlateauIsNotTheEndOfASchedule) {
  const config::Config c = config_with({"optim.schedule=constant"});
  Learned l = healthy(c);
  for (std::size_t i = 400; i < l.loss.size(); ++i) l.loss[i] = l.loss[399] + 0.01 * std::sin(static_cast<double>(i));
  l.held_out.clear();
  const auto all = illnesses_of_learning(c, l, kParameters);
  ASSERT_EQ(found(all), Illnesses{Illness::plateau});
  EXPECT_GT(all[0].share, 0.3);
  // The same losses where the rate has fallen by then are what they should be.
  const config::Config wsd = config_with({"optim.schedule=wsd", "optim.decay_fraction=0.9"});
  l.rate = healthy(wsd).rate;
  EXPECT_EQ(found(illnesses_of_learning(wsd, l, kParameters)), Illnesses{});
  // Noise that hides what happens is no plateau either.
  Learned noisy = healthy(c);
  for (std::size_t i = 0; i < noisy.loss.size(); ++i) noisy.loss[i] = i % 2 == 0 ? 2 : 6;
  noisy.held_out.clear();
  EXPECT_EQ(found(illnesses_of_learning(c, noisy, kParameters)), Illnesses{});
}

TEST(Learning, OverfittingTakesATrainingLossThatFalls) {
  const config::Config c = config_with();
  Learned l = healthy(c);
  for (auto& [step, loss] : l.held_out)
    if (step > 400) loss += 0.002 * static_cast<double>(step - 400);
  const auto all = illnesses_of_learning(c, l, kParameters);
  ASSERT_EQ(found(all), Illnesses{Illness::overfitting});
  EXPECT_EQ(all[0].changes, std::vector<std::string>{"train.patience=3"});
  EXPECT_TRUE(says(all[0].found, {"step 400", "step 1000"}));
  EXPECT_NEAR(all[0].share, 0.6, 1e-9);
  l.held_out.resize(5);  // one evaluation behind the best one may be chance
  l.held_out.back().second *= 1.5;
  EXPECT_EQ(found(illnesses_of_learning(c, l, kParameters)), Illnesses{});
}

// 1000 steps of 64 rows of 256 tokens are 16.4 million.
TEST(Learning, TooFewTokens) {
  const config::Config c = config_with();
  const auto all = illnesses_of_learning(c, {}, 100'000'000);
  ASSERT_EQ(found(all), Illnesses{Illness::few_tokens});
  EXPECT_TRUE(says(all[0].found, {"0.16 tokens", "100 million parameters"}));
  config::Config goes_on = c;
  goes_on.model.init_from = "a";
  EXPECT_EQ(found(illnesses_of_learning(goes_on, {}, 100'000'000)), Illnesses{});
}

// A run whose routers were looked at: of each layer the loads of its experts.
Learned with_routers(const config::Config& c, std::vector<std::vector<double>> loads, std::int64_t looks = 5) {
  Learned l = healthy(c);
  for (std::size_t i = 0; i < loads.size(); ++i)
    l.routers.push_back({static_cast<std::int64_t>(i), std::move(loads[i])});
  l.router_looks = looks;
  l.first_look = 800;
  l.last_look = 1000;
  return l;
}

TEST(Learning, ExpertsThatStarveAndARouterThatHasCollapsed) {
  const config::Config c = config_with({"model.family=mixtral", "model.experts=8", "model.experts_per_token=2"});
  const std::vector<double> even(8, 1.0), uneven = {2, 1.5, 1.2, 1, 0.8, 0.6, 0.5, 0.4},
                                          starving = {1.2, 1.2, 1.2, 1.2, 1.1, 1.1, 0.98, 0.02},
                                          taken = {4, 4, 0, 0, 0, 0, 0, 0};
  const auto of = [&](std::vector<std::vector<double>> loads, std::int64_t looks = 5) {
    return illnesses_of_learning(c, with_routers(c, std::move(loads), looks), kParameters);
  };
  EXPECT_EQ(found(of({even, uneven})), Illnesses{});
  const auto hungry = of({even, starving});
  ASSERT_EQ(found(hungry), Illnesses{Illness::starving_expert});
  EXPECT_TRUE(says(hungry[0].found, {"expert 7 of layer 1 has 0.02 of an even share", "step 800 to 1000"}));
  EXPECT_TRUE(says(hungry[0].costs, {"1 of 16 experts"}));
  EXPECT_EQ(hungry[0].changes, std::vector<std::string>{"model.router_aux=0.02"});
  EXPECT_NEAR(hungry[0].share, 1.0 / 16, 1e-12);
  config::Config pooled = c;
  pooled.model.router_balance = "model";
  EXPECT_EQ(illnesses_of_learning(pooled, with_routers(pooled, {even, starving}), kParameters)[0].changes,
            std::vector<std::string>{"model.router_balance=layer"});
  pooled.model.router_aux = 0;  // no balance does anything
  EXPECT_EQ(illnesses_of_learning(pooled, with_routers(pooled, {even, starving}), kParameters)[0].changes,
            (std::vector<std::string>{"model.router_aux=0.01", "model.router_balance=layer"}));
  // Where a token takes all experts nothing is chosen, however sums round.
  const config::Config all = config_with({"model.family=mixtral", "model.experts=8", "model.experts_per_token=8"});
  EXPECT_EQ(
      found(illnesses_of_learning(all, with_routers(all, {std::vector<double>(8, 1 - 1e-15), starving}), kParameters)),
      Illnesses{});
  const auto collapsed = of({taken, even, even, even});
  ASSERT_EQ(found(collapsed), Illnesses{Illness::collapsed_router}) << "its experts starve for that reason";
  EXPECT_TRUE(says(collapsed[0].found, {"layer 0", "as if it had 2.0 of its 8"}));
  EXPECT_EQ(collapsed[0].share, 0.25);
  EXPECT_EQ(found(of({taken, starving})), (Illnesses{Illness::collapsed_router, Illness::starving_expert}));
  EXPECT_EQ(found(of({taken, starving}, 2)), Illnesses{}) << "two looks say nothing";
  Learned early = with_routers(c, {taken, starving});
  early.first_look = 60;
  EXPECT_EQ(found(illnesses_of_learning(c, early, kParameters)), Illnesses{}) << "nor do those of the first steps";
}

TEST(Learning, ExpertsInUse) {
  EXPECT_EQ(experts_in_use(std::vector<double>(64, 1.0)), 64);
  EXPECT_EQ(experts_in_use({8, 0, 0, 0, 0, 0, 0, 0}), 1);
  EXPECT_EQ(experts_in_use({0, 0}), 0);
  EXPECT_EQ(fewest_in_use(64, 8), 16);
  EXPECT_EQ(fewest_in_use(8, 6), 7);
  EXPECT_EQ(fewest_in_use(4, 4), 4) << "every expert is in use, and no router can collapse";
}

}  // namespace
}  // namespace redline::perf
