// Every second of a session is in exactly one part: the parts add up to the wall time, whatever happens in it.
#include "train/goodput.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "testing/temp_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

// Time goes on where a test lets it.
double steady_now = 0, slept = 0;
const Goodput::Clocks kByHand = {[] { return steady_now; }, [] { return slept; },
                                 [] { return 1e9 + steady_now + slept; }};

class GoodputTest : public ::testing::Test {
 protected:
  GoodputTest() {
    steady_now = 1000;
    slept = 77;
  }
  static void pass(double seconds) { steady_now += seconds; }
  static StepMetrics step(Goodput& goodput, double seconds, double waited = 0, double idle = 0) {
    pass(seconds);
    StepMetrics m;
    m.tokens = 100;
    m.data_wait_ms = 1e3 * waited;
    m.idle_ms = 1e3 * idle;
    goodput.stepped(m);
    return m;
  }
};

TEST(StartLaps, AddUpToTheStart) {
  StartLaps start(100);
  start.lap("plan", 101.25);
  start.lap("weights", 104);
  start.lap("folder", 104.01);
  start.lap("plan", 105);
  EXPECT_DOUBLE_EQ(start.began(), 100);
  EXPECT_DOUBLE_EQ(start.seconds(), 5);
  EXPECT_EQ(start.in_words(), "ready in 5.0 s: plan 2.2, weights 2.8");
  start.part("attention", 0.5);
  start.lap("first runs", 107);
  EXPECT_EQ(start.in_words(), "ready in 7.0 s: plan 2.2, weights 2.8, attention 0.5, first runs 1.5");
}

TEST_F(GoodputTest, IsAlwaysInOnePart) {
  Goodput goodput(990.0, kByHand);  // the process began ten seconds ago
  EXPECT_DOUBLE_EQ(goodput.began(), 1e9 + 990 + 77);
  pass(5);
  goodput.turn_to(Part::steps);
  step(goodput, 20);
  {
    const Goodput::Scope evaluating = goodput.in(Part::evaluation);
    pass(3);
    {
      const Goodput::Scope saving = goodput.saving(1);
      pass(2);
    }
    pass(1);
  }
  slept += 60;
  {
    const Goodput::Scope sampling = goodput.in(Part::sampling);
    pass(0.5);
    const Account inside = goodput.account();
    EXPECT_DOUBLE_EQ(inside.of(Part::sampling), 0.5) << "of a part that goes on";
  }
  pass(4);
  const Account all = goodput.account();
  EXPECT_DOUBLE_EQ(all.of(Part::start_up), 15);
  EXPECT_DOUBLE_EQ(all.of(Part::steps), 24);
  EXPECT_DOUBLE_EQ(all.of(Part::evaluation), 4);
  EXPECT_DOUBLE_EQ(all.of(Part::saving), 2);
  EXPECT_DOUBLE_EQ(all.of(Part::sampling), 0.5);
  EXPECT_DOUBLE_EQ(all.of(Part::standing_still), 60) << "the machine was suspended";
  EXPECT_DOUBLE_EQ(all.wall(), steady_now - 990 + 60);
  EXPECT_DOUBLE_EQ(all.share(Part::steps), 24 / 105.5);
}

// A host that waits for a batch while the card works costs nothing.
TEST_F(GoodputTest, WaitingForDataCountsWhereTheDeviceHadNothingToDo) {
  Goodput goodput({}, kByHand);
  goodput.turn_to(Part::steps);
  step(goodput, 10, 4, 0);
  EXPECT_EQ(goodput.account().of(Part::data), 0);
  step(goodput, 10, 4, 1);
  EXPECT_DOUBLE_EQ(goodput.account().of(Part::data), 1);
  step(goodput, 10, 4, 6);
  const Account all = goodput.account();
  EXPECT_DOUBLE_EQ(all.of(Part::data), 5);
  EXPECT_DOUBLE_EQ(all.of(Part::steps), 25);
  step(goodput, 0, 1000, 1000);  // more than there was
  EXPECT_DOUBLE_EQ(goodput.account().of(Part::steps), 0);
  EXPECT_DOUBLE_EQ(goodput.account().wall(), 30);
}

TEST_F(GoodputTest, GoingBackToACheckpointLosesWhatWasMadeSince) {
  Goodput goodput({}, kByHand);
  pass(7);
  goodput.turn_to(Part::steps);
  const auto save = [&](std::int64_t step) {
    const Goodput::Scope saving = goodput.saving(step);
    pass(1);
  };
  step(goodput, 10);
  save(10);
  step(goodput, 10, 2, 2);
  save(20);
  step(goodput, 10);
  goodput.went_back(20);
  Account all = goodput.account();
  EXPECT_DOUBLE_EQ(all.of(Part::done_again), 10);
  EXPECT_DOUBLE_EQ(all.of(Part::steps), 18);
  step(goodput, 5);
  goodput.went_back(10);  // the newest was broken
  all = goodput.account();
  EXPECT_DOUBLE_EQ(all.of(Part::done_again), 25);
  EXPECT_DOUBLE_EQ(all.of(Part::steps), 10);
  EXPECT_DOUBLE_EQ(all.of(Part::data), 0);
  EXPECT_DOUBLE_EQ(all.of(Part::saving), 2) << "which is not done again";
  step(goodput, 5);
  goodput.went_back(0);  // to what it was started with
  all = goodput.account();
  EXPECT_DOUBLE_EQ(all.of(Part::done_again), 40);
  EXPECT_DOUBLE_EQ(all.of(Part::steps), 0);
  EXPECT_DOUBLE_EQ(all.wall(), steady_now - 1000);
}

TEST_F(GoodputTest, RowsHaveTheShareAndNowAndThenAllParts) {
  Goodput goodput({}, kByHand);
  pass(10);
  goodput.turn_to(Part::steps);
  StepMetrics m = step(goodput, 10);
  EXPECT_DOUBLE_EQ(m.goodput, 0.5);
  ASSERT_TRUE(m.account) << "the first";
  EXPECT_DOUBLE_EQ(m.account->of(Part::start_up), 10);
  EXPECT_FALSE(step(goodput, 9).account);
  m = step(goodput, 2);
  EXPECT_DOUBLE_EQ(m.goodput, 21.0 / 31);
  ASSERT_TRUE(m.account);
  EXPECT_EQ(m.account->tokens, 300);
  EXPECT_FALSE(m.account->joules) << "they are not counted";
}

TEST_F(GoodputTest, EnergyIsWhatTheCardSaysLast) {
  Goodput goodput({}, kByHand);
  goodput.turn_to(Part::steps);
  EXPECT_FALSE(goodput.account().joules_per_token());
  StepMetrics m;
  m.tokens = 50;
  m.gpu.emplace();
  m.gpu->energy_j = 100;
  goodput.stepped(m);
  m.gpu->energy_j.reset();  // it did not answer this time
  goodput.stepped(m);
  EXPECT_DOUBLE_EQ(goodput.account().joules.value(), 100);
  EXPECT_DOUBLE_EQ(goodput.account().joules_per_token().value(), 1);
  goodput.ask(nullptr);
  EXPECT_DOUBLE_EQ(goodput.account().joules.value(), 100);
}

TEST(Goodput, AProcessIsOlderThanItsFirstLine) {
  const double began = process_began(), now = steady_seconds();
  EXPECT_LT(began, now);
  EXPECT_GT(began, now - 3600);
  double nearest = 1;  // of some looks: between its two clocks a process may have to wait
  for (int look = 0; look < 20; ++look) nearest = std::min(nearest, std::abs(process_began() - began));
  EXPECT_LT(nearest, 0.05) << "it is always the same";
}

// The whole of it: a run with everything in it, timed from outside when it ends and when it told the last before that.
TEST(Goodput, ThePartsOfARunAddUpToItsWallTime) {
  struct Ending final : Observer {
    std::optional<Account> account;
    std::vector<StepMetrics> steps;
    double at = 0, before = 0;  // of this event and of the one before, on the steady clock
    void on(const Event& event) override {
      before = std::exchange(at, steady_seconds());
      hear(
          event, [&](const Finished& e) { account = e.account; }, [&](const Stepped& e) { steps.push_back(e); });
    }
  } seen;
  testing::TempFolder temp;
  testing::WatchedDevice device(2);
  TrainOptions options =
      options_for(tiny_run({"train.sample_every=10", "train.sample_tokens=16", "train.max_steps=60"}),
                  temp.path() / "run", {&seen});
  constexpr double kEarlier = 0.25;  // when the process began
  const double start = steady_seconds();
  options.start.emplace(start - kEarlier);
  ASSERT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
  ASSERT_TRUE(seen.account);
  EXPECT_GE(seen.account->wall(), seen.before - start + kEarlier - 1e-3);
  EXPECT_LE(seen.account->wall(), seen.at - start + kEarlier + 1e-3);
  for (const Part part : {Part::steps, Part::evaluation, Part::sampling, Part::saving})
    EXPECT_GT(seen.account->of(part), 0) << kParts[static_cast<std::size_t>(part)].key;
  EXPECT_GT(seen.account->of(Part::start_up), kEarlier);
  EXPECT_EQ(seen.account->of(Part::done_again), 0);
  std::int64_t tokens = 0;
  for (const StepMetrics& m : seen.steps) tokens += m.tokens;
  EXPECT_EQ(seen.account->tokens, tokens);
  ASSERT_TRUE(seen.steps.front().account);
  EXPECT_NEAR(seen.steps.front().goodput, seen.steps.front().account->share(Part::steps), 1e-9);
  EXPECT_GT(seen.steps.back().goodput, 0);
}

}  // namespace
}  // namespace redline::train
