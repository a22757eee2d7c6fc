// The steps of a run do not depend on who keeps it: with a keeper that does nothing they are the same, and nothing is
// left. Their times are the device's own, samples leave no trace, and the noise of gradients is found where it is
// known.
#include "train/step_loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "io/checkpoint_folder.h"
#include "testing/temp_folder.h"
#include "train/memory_advice.h"
#include "train/step_phases.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

TEST(StepLoop, NeedsNoFolder) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=12", "train.sample_every=5", "train.sample_tokens=4"});
  const Ran kept = run(c, temp.path() / "kept");
  const TrainOptions options = options_for(c, temp.path() / "nowhere");
  device::CpuDevice device(2);
  Keeper nothing_kept;
  StepLoop loop(options, device, real_files(), nothing_kept);
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

// What routers do comes with every step's result; loads by layer at the first step and every so often.
TEST(StepLoop, TellsWhatRoutersDo) {
  testing::TempFolder temp;
  const std::vector<std::string> experts = {"model.family=qwen3_moe", "model.experts=4",   "model.experts_per_token=2",
                                            "model.expert_ffn=16",    "model.layers=3",    "model.dense_layers=[1]",
                                            "train.max_steps=7",      "log.router_every=3"};
  const Ran ran = expect_the_same_in_parts(tiny_run(experts), temp.path());
  for (std::size_t i = 0; i < 7; ++i) {
    const auto& router = ran.seen.steps[i].router;
    ASSERT_TRUE(router.has_value());
    EXPECT_GT(*router->balance, 1);  // about 2 where loads are even
    EXPECT_LT(*router->balance, 4);
    EXPECT_GT(*router->entropy, 0);
    EXPECT_LE(*router->entropy, std::log(4.0) + 1e-6);
    EXPECT_GE(*router->largest_load, 1);
    EXPECT_LE(*router->smallest_load, 1);
    ASSERT_EQ(router->by_layer != nullptr, i == 0 || i == 2 || i == 5) << i + 1;
    if (!router->by_layer) continue;
    EXPECT_EQ(router->by_layer->layers, (std::vector<std::int64_t>{0, 2}));
    for (const std::vector<double>& loads : router->by_layer->loads)
      EXPECT_NEAR(loads[0] + loads[1] + loads[2] + loads[3], 4, 1e-9);
  }
  EXPECT_FALSE(run(tiny_run({"train.max_steps=1"}), temp.path() / "dense").seen.steps[0].router.has_value());
}

// Hears the steps, and takes its time to save the first.
struct Recording final : Keeper {
  testing::Recorder heard;
  std::chrono::milliseconds saving{0};
  void tell(const Event& event) override { heard.on(event); }
  void save(model::Engine&, const RunState& state, double) override {
    if (state.step == 1) std::this_thread::sleep_for(saving);
  }
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
      options_for(tiny_run({"train.max_steps=2", "train.eval_every=1", "checkpoint.every=1"}), "nowhere");
  Recording keeper;
  keeper.saving = std::chrono::milliseconds(1000);
  testing::AheadDevice ahead(2);
  device::CpuDevice cpu(2);
  for (device::CpuDevice* device : {&cpu, static_cast<device::CpuDevice*>(&ahead)})
    StepLoop(options, *device, real_files(), keeper).run();
  ASSERT_EQ(keeper.heard.steps.size(), 4u);
  for (const StepMetrics& m : keeper.heard.steps) EXPECT_LT(m.step_ms, 900) << m.step;
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

struct SampleRun {
  std::vector<double> losses;
  std::vector<std::int64_t> steps;
  std::vector<std::vector<SampledText>> samples;
  std::int64_t cache_bytes = 0;
};

SampleRun sample_run(const std::vector<std::string>& overrides, const Path& folder, bool resume = false) {
  SampleRun ran;
  Hears listener(
      [&](const Started& e) { ran.cache_bytes = e.memory->device.by_role[static_cast<int>(program::Role::cache)]; },
      [&](const Stepped& e) { ran.losses.push_back(e.loss); },
      [&](const Sampled& e) {
        ran.steps.push_back(e.step);
        ran.samples.push_back(e.texts);
      });
  device::CpuDevice device(2);
  run_on(device, options_for({}, {}, {&listener}), tiny_run(overrides), folder, resume);
  return ran;
}

TEST(Samples, LeaveNoTraceInTheRun) {
  const testing::TempFolder folder;
  const SampleRun plain = sample_run({"train.max_steps=12"}, folder / "plain");
  const SampleRun sampled = sample_run({"train.max_steps=12", "train.sample_every=5",
                                        "train.sample_prompts=<begin>,<begin><source>1", "train.sample_tokens=90"},
                                       folder / "sampled");
  EXPECT_EQ(plain.losses, sampled.losses);
  EXPECT_EQ(tensors(folder / "plain", 12), tensors(folder / "sampled", 12));
  EXPECT_TRUE(plain.steps.empty());
  EXPECT_EQ(plain.cache_bytes, 0);
  EXPECT_EQ(sampled.steps, (std::vector<std::int64_t>{5, 10, 12}));
  EXPECT_GT(sampled.cache_bytes, 0);
  for (const auto& texts : sampled.samples) {
    ASSERT_EQ(texts.size(), 2u);
    EXPECT_EQ(texts[0].prompt, "<begin>");
    EXPECT_EQ(texts[1].prompt, "<begin><source>1");
  }
  EXPECT_NE(sampled.samples[0][0].text, sampled.samples[2][0].text);  // other weights
}

// What a run that goes on writes is what it would have written.
TEST(Samples, AreTheSameAfterAResume) {
  const testing::TempFolder folder;
  const std::vector<std::string> sampling = {"train.sample_every=4", "train.sample_tokens=20",
                                             "optim.schedule=constant"};
  const auto with_steps = [&](const char* steps) {
    std::vector<std::string> all = sampling;
    all.push_back(steps);
    return all;
  };
  const SampleRun whole = sample_run(with_steps("train.max_steps=8"), folder / "whole");
  sample_run(with_steps("train.max_steps=4"), folder / "parts");
  const SampleRun rest = sample_run(with_steps("train.max_steps=8"), folder / "parts", true);
  ASSERT_EQ(whole.samples.size(), 2u);
  ASSERT_EQ(rest.samples.size(), 1u);
  EXPECT_EQ(rest.samples[0][0].text, whole.samples[1][0].text);
  EXPECT_EQ(rest.samples[0][0].prompt, whole.samples[1][0].prompt);  // of the held-out data
  EXPECT_FALSE(whole.samples[0][0].prompt.empty());
}

TEST(Samples, ArePartOfThePlan) {
  const auto needed = [](std::vector<std::string> overrides) {
    return memory_needed(tiny_run(std::move(overrides)), device::Kind::cpu);
  };
  const std::int64_t without = needed({}), few = needed({"train.sample_every=1", "train.sample_tokens=1"});
  EXPECT_GT(few, without);
  EXPECT_GT(needed({"train.sample_every=1", "train.sample_prompts=a,b,c"}), few);
}

TEST(Samples, RefusePromptsThatCannotBeUsed) {
  const testing::TempFolder folder;
  for (const std::string& prompt : {std::string(65, 'x'), std::string()}) {
    EXPECT_THROW(sample_run({"train.sample_every=1", "train.sample_prompts=[\"" + prompt + "\"]"}, folder / "a"),
                 UserError);
    EXPECT_FALSE(real_files().exists(folder / "a"));
  }
}

constexpr std::size_t kParameters = 40;
constexpr double kMean = 0.02, kDeviation = 0.5;  // of each parameter's gradient, a pair

// The squared norm of a sum over so many pairs: of normal numbers it is drawn at once.
std::vector<double> sum_of_pairs(double pairs, std::uint64_t stream) {
  const Random random(11, stream);
  std::vector<double> g(kParameters);
  for (std::size_t i = 0; i < kParameters; ++i) {
    const double u = std::max(random.uniform(2 * i), 1e-12), v = random.uniform(2 * i + 1);
    g[i] =
        pairs * kMean + std::sqrt(pairs) * kDeviation * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  return g;
}
double squares(const std::vector<double>& g) {
  double sum = 0;
  for (const double x : g) sum += x * x;
  return sum;
}

// The first of some micro-batches, and all of them, look after look.
NoiseScale look(double pairs, int micro_batches, int looks) {
  NoiseScale scale;
  for (int l = 0; l < looks; ++l) {
    std::vector<double> all(kParameters);
    double first = 0;
    for (int m = 0; m < micro_batches; ++m) {
      const std::vector<double> g = sum_of_pairs(pairs, static_cast<std::uint64_t>(100 * l + m));
      if (m == 0) first = squares(g);
      for (std::size_t i = 0; i < kParameters; ++i) all[i] += g[i];
    }
    const auto e = estimate_noise({first, pairs}, {squares(all), pairs * micro_batches});
    EXPECT_TRUE(e);
    scale.add(*e);
  }
  return scale;
}

TEST(GradientNoise, IsFoundWhereItIsKnown) {
  const double want = kDeviation * kDeviation / (kMean * kMean);  // 625 pairs
  for (const double pairs : {100.0, 1000.0}) {
    const std::optional<double> scale = look(pairs, 8, 200).pairs();
    ASSERT_TRUE(scale);
    EXPECT_NEAR(*scale, want, 0.2 * want) << pairs;
  }
}

TEST(GradientNoise, SeveralSmallGradientsCountAsOneSize) {
  // |g|^2 = n^2 |G|^2 + n S, to the letter: G^2 = 3, S = 50.
  const auto expected = [](double n) { return n * n * 3 + n * 50; };
  for (const double count : {1.0, 4.0}) {
    const auto e = estimate_noise({count * expected(10), count * 10, count}, {expected(80), 80});
    ASSERT_TRUE(e);
    EXPECT_NEAR(e->signal, 3, 1e-9);
    EXPECT_NEAR(e->noise, 50, 1e-9);
  }
}

TEST(GradientNoise, SaysNothingWhereItCannotBeTold) {
  EXPECT_FALSE(estimate_noise({5, 10}, {5, 10})) << "of one size";
  EXPECT_FALSE(estimate_noise({std::numeric_limits<double>::infinity(), 10}, {5, 20}));
  EXPECT_FALSE(estimate_noise({0, 0}, {5, 20})) << "of no pairs";
  NoiseScale scale;
  EXPECT_FALSE(scale.pairs());
  scale.add({-1, 5});
  EXPECT_FALSE(scale.pairs()) << "more noise than there is gradient";
  for (int i = 0; i < 40; ++i) scale.add({1, 5});
  ASSERT_TRUE(scale.pairs());
  EXPECT_NEAR(*scale.pairs(), 5, 2) << "what was is forgotten by and by";
}

}  // namespace
}  // namespace redline::train
