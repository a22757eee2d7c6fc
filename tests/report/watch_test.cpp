// Warnings come when there is a reason, name it, and do not come again at every step.
#include "report/watch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/ramps.h"
#include "testing/says.h"

namespace redline::report {
namespace {

class WatchTest : public ::testing::Test {
 protected:
  WatchTest() { watch_.on(train::Started{}); }

  void steps(int n, const train::StepMetrics& like) {
    for (int i = 0; i < n; ++i) {
      train::StepMetrics m = like;
      m.step = ++step_;
      m.time = time_ += 1;
      watch_.on(train::Stepped{m});
    }
  }
  static train::StepMetrics usual() {
    train::StepMetrics m;
    m.step_ms = 100;
    m.data_wait_ms = 1;
    m.padding = 0.05;
    m.grad_norm = 1;
    return m;
  }
  // As many warnings so far, the last with these parts.
  void expect_said(std::initializer_list<std::string_view> parts, std::size_t warnings = 1) const {
    ASSERT_EQ(said_.size(), warnings);
    EXPECT_TRUE(testing::says(said_.back(), parts));
  }
  void expect_quiet() const { EXPECT_EQ(said_, std::vector<std::string>()); }

  std::vector<std::string> said_;
  Watch watch_{[this](const std::string& s) { said_.push_back(s); }};
  std::int64_t step_ = 0;
  double time_ = 1e9;
};

TEST_F(WatchTest, AHealthyRunIsQuiet) {
  steps(2000, usual());
  expect_quiet();
}

TEST_F(WatchTest, StepsThatGrowAreNotSlow) {
  config::Config config;
  config.train.accumulate = 8;
  config.train.accumulate_from = 1;
  config.train.accumulate_ramp_steps = 40;
  train::Started started;
  started.config = &config;
  watch_.on(started);
  const auto grown = [&] {
    train::StepMetrics m = usual();
    m.step_ms *= static_cast<double>(config::micro_batches(config.train, step_));
    return m;
  };
  for (int i = 0; i < 100; ++i) steps(1, grown());
  expect_quiet();
  train::StepMetrics slow = grown();
  slow.step_ms *= 2;
  steps(1, slow);
  expect_said({"step 101", "1.6 s", "median of 800 ms"});
}

TEST_F(WatchTest, AModelThatLearnsNothingIsWarnedOfAtOnce) {
  config::Config config;
  config.model.vocab = 1000;
  train::Started started;
  started.config = &config;
  watch_.on(started);
  train::StepMetrics m = usual();
  m.grad_norm = 0;
  m.loss = std::log(1000.0);
  steps(100, m);
  expect_said({"gradient of step 1", "0", "guess"});
}

TEST_F(WatchTest, AGradientFarAboveTheMedian) {
  train::StepMetrics m = usual();
  for (int i = 0; i < 60; ++i) {  // a run that settles has no spike
    m.grad_norm = 1 + 50.0 / (1 + i);
    steps(1, m);
  }
  const double settled = m.grad_norm;
  steps(60, m);
  m.grad_norm = 19.9 * settled;
  steps(1, m);
  expect_quiet();
  m.grad_norm = 30 * settled;
  steps(2, m);
  expect_said({"gradient norm", "step 122", "30 times", "optim.lr", "guard.spike"});
  steps(600, usual());
  steps(1, m);
  expect_said({"gradient norm", "1 more"}, 2);
}

TEST_F(WatchTest, AGradientThatIsNotFiniteIsNoSpike) {
  steps(60, usual());
  train::StepMetrics m = usual();
  m.grad_norm = INFINITY;
  steps(1, m);
  expect_quiet();
}

TEST_F(WatchTest, WaitingForDataIsSaidOnceInTenMinutes) {
  train::StepMetrics m = usual();
  m.data_wait_ms = 5;
  steps(500, m);
  expect_said({"5.0%", "last 20 steps", "data", "#slow-data"});
  steps(200, m);  // ten minutes have passed
  EXPECT_EQ(said_.size(), 2u);
}

TEST_F(WatchTest, AClockThatIsSetBackSilencesNoWarning) {
  train::StepMetrics m = usual();
  m.data_wait_ms = 5;
  steps(50, m);
  EXPECT_EQ(said_.size(), 1u);
  time_ -= 1e6;
  steps(50, m);
  EXPECT_EQ(said_.size(), 2u);
}

TEST_F(WatchTest, PaddingAboveATenth) {
  train::StepMetrics m = usual();
  m.padding = 0.35;
  steps(100, m);
  expect_said({"35.0%", "#padding"});
}

TEST_F(WatchTest, WhatHappensBetweenStepsIsWeighedOnceTheSessionIsOld) {
  train::StepMetrics m = usual();
  m.account.emplace();
  m.account->of(train::Part::start_up) = 1000;
  m.account->of(train::Part::steps) = 150;
  m.account->of(train::Part::evaluation) = 100;
  steps(10, m);
  expect_quiet();
  m.account->of(train::Part::steps) = 300;
  m.account->of(train::Part::saving) = 20;
  steps(100, m);
  expect_said({"23.8%", "evaluation", "train.eval_every"});
}

TEST_F(WatchTest, ARankThatIsSlow) {
  train::StepMetrics m = usual();
  m.ranks = train::RankPaces{12, 3, 105, 100};
  steps(100, m);
  expect_quiet();
  m.ranks->slowest_ms = 115;
  steps(100, m);
  expect_said({"slow rank", "#a-slow-rank"});
}

TEST_F(WatchTest, AStepFarAboveTheMedian) {
  steps(60, usual());
  train::StepMetrics slow = usual();
  slow.step_ms = 149;
  steps(1, slow);
  expect_quiet();
  slow.step_ms = 160;
  steps(3, slow);
  expect_said({"step 62", "160 ms", "1.6 times", "100 ms", "#slow-steps"});
  steps(600, usual());
  steps(1, slow);
  expect_said({"2 more"}, 2);
}

TEST_F(WatchTest, TheFirstStepsMayBeSlow) {
  train::StepMetrics first = usual();
  first.step_ms = 5000;
  first.data_wait_ms = 3000;
  steps(5, first);
  steps(100, usual());
  expect_quiet();
}

TEST_F(WatchTest, ThrottledClocks) {
  train::StepMetrics m = usual();
  m.gpu = device::GpuSample{};
  m.gpu->throttle = "";
  m.gpu->clock_mhz = 1980;
  m.gpu->max_clock_mhz = 1980;
  steps(50, m);
  expect_quiet();
  m.gpu->throttle = "power cap, heat";
  m.gpu->temperature_c = 88;
  steps(50, m);
  expect_said({"power cap, heat", "1980 of 1980 MHz", "88 C", "#a-gpu-that-throttles"});
}

TEST_F(WatchTest, APowerCapIsSaidOnlyWhereItCostsMuch) {
  train::StepMetrics m = usual();
  m.gpu = device::GpuSample{};
  m.gpu->throttle = "power cap";
  m.gpu->power_w = 693;
  m.gpu->power_limit_w = 700;
  steps(50, m);  // clocks are not known
  m.gpu->clock_mhz = 1500;
  m.gpu->max_clock_mhz = 1980;
  steps(50, m);
  expect_quiet();
  m.gpu->clock_mhz = 1200;
  steps(50, m);
  expect_said({"power cap", "1200 of 1980 MHz", "693 W of 700 W", "normal"});
}

TEST_F(WatchTest, MemoryOfACardThatIsLeftUnused) {
  program::MemoryPlan memory;
  memory.device.total = std::int64_t{30} << 30;
  train::RunHeader h;
  h.card = true;
  h.memory = &memory;
  h.device_memory = std::int64_t{48} << 30;
  watch_.on(train::Started{h});
  EXPECT_TRUE(said_.empty()) << "62% is enough";
  h.device_memory = std::int64_t{80} << 30;
  watch_.on(train::Started{h});
  expect_said({"30.0 GiB", "80.0 GiB", "38%", "#unused-memory"});
  const auto quiet_where = [&](void (*holds)(train::RunHeader&)) {
    train::RunHeader other = h;
    holds(other);
    watch_.on(train::Started{other});
    EXPECT_EQ(said_.size(), 1u);
  };
  quiet_where([](train::RunHeader& run) { run.first_step = 40; });          // a run that goes on keeps its batch
  quiet_where([](train::RunHeader& run) { run.batch_was_chosen = true; });  // as the fastest
  quiet_where([](train::RunHeader& run) { run.card = false; });  // a host has other things to do with its memory
}

train::StepMetrics looked_at(train::StepMetrics m, std::vector<model::Fp8Seen> tensors) {
  m.fp8.emplace(std::move(tensors));
  return m;
}
const model::Fp8Seen kFits{"layer 0/qkv input", DType::e4m3, 64, 3.5, 1e-4, 0.3};

TEST_F(WatchTest, TensorsThatFitIntoEightBitsAreQuiet) {
  const model::Fp8Seen nothing{"layer 0/o gradient", DType::e5m2, 1, 0, 0, 1};  // zero, so nothing is lost
  steps(10, looked_at(usual(), {kFits, nothing}));
  train::StepMetrics half_empty = usual();
  half_empty.padding = 0.09;
  model::Fp8Seen padded = kFits;
  padded.zero = 0.54;  // of which 0.09 are padding
  steps(1, looked_at(half_empty, {padded}));
  expect_quiet();
}

TEST_F(WatchTest, ATensorThatLeavesTheRangeOfEightBitsIsWarnedOfOnce) {
  model::Fp8Seen large = kFits, cut = kFits, small = kFits, odd = kFits;
  large.amax = 8;  // times 64 is 512, of 448
  cut.saturated = 2e-3;
  small.zero = 0.7;
  odd.amax = NAN;
  const std::pair<model::Fp8Seen, std::string_view> cases[] = {
      {large, "512, of at most 448"}, {cut, "0.2%"}, {small, "70.0% of it are zero"}, {odd, "not finite"}};
  for (const auto& [tensor, words] : cases) {
    step_ = 0;
    said_.clear();
    watch_.on(train::Started{});
    steps(5, looked_at(usual(), {kFits, tensor}));
    expect_said({"layer 0/qkv input", words, "#a-tensor-that-leaves-the-range-of-fp8"});
    model::Fp8Seen another = tensor, third = tensor;
    another.name = "layer 1/o input";
    third.name = "layer 2/o input";
    steps(1, looked_at(usual(), {tensor, another, third}));
    expect_said({"layer 1/o input", "1 more tensor"}, 2);
  }
}

TEST_F(WatchTest, AStepThatIsLookedAtMayTakeLonger) {
  steps(100, usual());
  train::StepMetrics slow = looked_at(usual(), {kFits});
  slow.step_ms = 300;
  steps(1, slow);
  expect_quiet();
}

}  // namespace
}  // namespace redline::report
