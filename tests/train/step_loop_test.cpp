// The steps of a run do not depend on who keeps it: with a keeper that does nothing they are the same, and nothing is
// left. Their times are the device's own, whatever the host does.
#include "train/step_loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

TrainOptions options_for(const config::Config& config, const Path& folder) {
  TrainOptions options;
  options.config = config;
  options.folder = folder;
  return options;
}

TEST(StepLoop, NeedsNoFolder) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=12", "train.sample_every=5", "train.sample_tokens=4"});
  const Ran kept = run(c, temp.path() / "kept");
  const TrainOptions options = options_for(c, temp.path() / "nowhere");
  device::CpuDevice device(2);
  Keeper nobody;
  StepLoop loop(options, device, real_files(), nobody);
  const TrainResult result = loop.run();
  EXPECT_EQ(result.outcome, Outcome::finished);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(loop.step(), 12);
  ASSERT_TRUE(result.eval_loss.has_value());
  EXPECT_EQ(result.eval_loss, kept.result.eval_loss);
  EXPECT_EQ(real_files().list(temp.path()), std::vector<std::string>{"kept"});
}

// What goes to a keeper: every step once and in order, and the state of each that is to be kept.
TEST(StepLoop, GivesItsKeeperEveryStepAndTheStatesToKeep) {
  testing::TempFolder temp;
  struct Listening final : Keeper {
    std::vector<std::int64_t> steps, saves;
    std::int64_t tokens = 0;
    Finished ending;
    void tell(const Event& event) override {
      hear(
          event,
          [&](const Stepped& e) {
            steps.push_back(e.step);
            tokens += e.tokens;
          },
          [&](const Finished& e) { ending = e; });
    }
    void save(model::Engine&, const RunState& state, double) override { saves.push_back(state.step); }
  } keeper;
  const TrainOptions options = options_for(tiny_run({"train.max_steps=7"}), temp.path() / "nowhere");
  device::CpuDevice device(2);
  StepLoop(options, device, real_files(), keeper).run();
  EXPECT_EQ(keeper.steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(keeper.saves, (std::vector<std::int64_t>{5, 7}));
  EXPECT_TRUE(keeper.ending.text.starts_with("7 steps done, held-out loss ")) << keeper.ending.text;
  EXPECT_EQ(keeper.ending.steps, 7);
  EXPECT_EQ(keeper.ending.tokens, keeper.tokens);
  EXPECT_GT(keeper.ending.seconds, 0);
  EXPECT_FALSE(keeper.ending.stopped || keeper.ending.resumed);
}

// A look at the tensors in eight bits comes at the first step and every so often, and changes nothing.
TEST(StepLoop, LooksAtWhatIsCastAndStaysTheSame) {
  testing::TempFolder temp;
  const auto with = [&](const char* every) {
    return run(tiny_run({"train.max_steps=7", "precision.matmul=fp8", fmt::format("log.fp8_every={}", every)}),
               temp.path() / every);
  };
  const Ran none = with("0"), some = with("3"), all = with("1");
  ASSERT_EQ(some.seen.steps.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_FALSE(none.seen.steps[i].fp8.has_value());
    EXPECT_EQ(some.seen.steps[i].fp8.has_value(), i == 0 || i == 2 || i == 5) << i + 1;
    ASSERT_TRUE(all.seen.steps[i].fp8.has_value());
    EXPECT_EQ(all.seen.steps[i].fp8->tensors.size(), 2u * 4 * 3);
    for (const Ran* looked : {&some, &all}) {
      EXPECT_EQ(looked->seen.steps[i].loss, none.seen.steps[i].loss);
      EXPECT_EQ(looked->seen.steps[i].grad_norm, none.seen.steps[i].grad_norm);
    }
  }
  EXPECT_EQ(all.result.eval_loss, none.result.eval_loss);
  EXPECT_FALSE(run(tiny_run({"train.max_steps=1"}), temp.path() / "bf16").seen.steps[0].fp8.has_value());
}

// Hears the steps, and takes its time to save.
struct Recording final : Keeper {
  testing::Recorder heard;
  std::chrono::milliseconds saving{0};
  void tell(const Event& event) override { heard.on(event); }
  void save(model::Engine&, const RunState&, double) override { std::this_thread::sleep_for(saving); }
};

constexpr double kStepMs = 2e3 * testing::AheadDevice::kProgram;  // a micro-step and an update

config::Config one_micro_step(std::vector<std::string> more) {
  more.insert(more.end(), {"train.accumulate=1", "train.eval_every=0", "checkpoint.every=0"});
  return tiny_run(more);
}

TrainOptions with_peak(const config::Config& config, double flops, bool measured) {
  TrainOptions options = options_for(config, "nowhere");
  options.peak_flops = flops;
  options.peak_was_measured = measured;
  return options;
}

// The device has done all that was queued when the host comes back, and finds the next results at once.
TEST(StepLoop, AHostThatStallsMakesOneStepSlowerAndNoneFaster) {
  const TrainOptions options = with_peak(one_micro_step({"train.max_steps=14"}), 1e9, false);
  testing::AheadDevice device(2);
  constexpr int kRehearsed = 2, kStalled = 10;  // the step
  device.given = [](int n) {
    if (n == kRehearsed + 2 * (kStalled - 1) + 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  };
  Recording keeper;
  StepLoop(options, device, real_files(), keeper).run();
  ASSERT_EQ(keeper.heard.steps.size(), 14u);
  for (const StepMetrics& m : keeper.heard.steps) {
    EXPECT_NEAR(m.device_ms, kStepMs, 1e-3) << m.step;
    EXPECT_GE(m.step_ms, kStepMs - 1e-3) << m.step;
    EXPECT_NEAR(m.idle_ms, m.step_ms - m.device_ms, 1e-6) << m.step;
    EXPECT_NEAR(m.tokens_per_s, static_cast<double>(m.tokens) / m.step_ms * 1e3, 1e-6 * m.tokens_per_s) << m.step;
    EXPECT_NEAR(m.mfu, m.tflops * 1e12 / 1e9, 1e-9 * m.mfu) << m.step;
    EXPECT_GE(m.idle_ms, m.step == kStalled ? 300 : 0);
  }
  EXPECT_EQ(keeper.heard.warnings, std::vector<std::string>{});
}

TEST(StepLoop, SavingAndEvaluatingAreNoPartOfAStep) {
  const TrainOptions options =
      options_for(tiny_run({"train.max_steps=4", "train.eval_every=1", "checkpoint.every=1"}), "nowhere");
  Recording keeper;
  keeper.saving = std::chrono::milliseconds(1500);
  testing::AheadDevice ahead(2);
  device::CpuDevice cpu(2);
  for (device::CpuDevice* device : {&cpu, static_cast<device::CpuDevice*>(&ahead)})
    StepLoop(options, *device, real_files(), keeper).run();
  ASSERT_EQ(keeper.heard.steps.size(), 8u);
  for (const StepMetrics& m : keeper.heard.steps) EXPECT_LT(m.step_ms, 1400) << m.step;
}

TEST(StepLoop, OnlyARateThatHoldsOverManyStepsRaisesAPeakThatWasMeasured) {
  for (const bool measured : {false, true}) {
    const TrainOptions options = with_peak(one_micro_step({"train.max_steps=25"}), 1, measured);
    device::CpuDevice device(2);
    Recording keeper;
    StepLoop(options, device, real_files(), keeper).run();
    for (const StepMetrics& m : keeper.heard.steps)
      EXPECT_EQ(m.mfu < 1e5, measured && m.step >= 20) << "step " << m.step << ", measured: " << measured;
    EXPECT_EQ(keeper.heard.warnings.size(), measured ? 1u : 0u);
  }
}

// What a device that runs ahead tries out before the first step changes no bit of the run.
TEST(StepLoop, IsTheSameOnADeviceThatRunsAhead) {
  const TrainOptions options = options_for(tiny_run({"train.max_steps=6"}), "nowhere");
  device::CpuDevice cpu(2);
  testing::AheadDevice ahead(2);
  Recording keeper;
  const TrainResult a = StepLoop(options, cpu, real_files(), keeper).run();
  const TrainResult b = StepLoop(options, ahead, real_files(), keeper).run();
  EXPECT_EQ(a.eval_loss, b.eval_loss);
  const std::vector<double> all = losses(keeper.heard);
  ASSERT_EQ(all.size(), 12u);
  EXPECT_TRUE(std::equal(all.begin(), all.begin() + 6, all.begin() + 6));
}

}  // namespace
}  // namespace redline::train
