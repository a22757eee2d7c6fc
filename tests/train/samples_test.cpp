// Samples during training: told at their steps, from the weights of that step, and without a trace in the run.
#include "train/step_phases.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "io/checkpoint_folder.h"
#include "testing/temp_folder.h"
#include "train/memory_advice.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

using testing::tiny_run;

struct Listener final : Observer {
  std::vector<double> losses;
  std::vector<std::int64_t> steps;
  std::vector<std::vector<SampledText>> samples;
  std::int64_t cache_bytes = 0;
  void on(const Event& event) override {
    hear(
        event, [&](const Started& e) { cache_bytes = e.memory->by_role[static_cast<int>(program::Role::cache)]; },
        [&](const Stepped& e) { losses.push_back(e.loss); },
        [&](const Sampled& e) {
          steps.push_back(e.step);
          samples.push_back(e.texts);
        });
  }
};

Listener run(const std::vector<std::string>& overrides, const Path& folder, bool resume = false) {
  Listener listener;
  device::CpuDevice device(2);
  TrainOptions options;
  options.config = tiny_run(overrides);
  options.folder = folder;
  options.resume = resume;
  options.observers = {&listener};
  train(options, device, real_files());
  return listener;
}

std::string weights(const Path& run_folder, std::int64_t step) {
  const Path folder = run_folder / "checkpoints" / io::checkpoint_name(step);
  return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
}

TEST(Samples, LeaveNoTraceInTheRun) {
  const testing::TempFolder folder;
  const Listener plain = run({"train.max_steps=12"}, folder / "plain");
  const Listener sampled = run({"train.max_steps=12", "train.sample_every=5",
                                "train.sample_prompts=<begin>,<begin><source>1", "train.sample_tokens=90"},
                               folder / "sampled");
  EXPECT_EQ(plain.losses, sampled.losses);
  EXPECT_EQ(weights(folder / "plain", 12), weights(folder / "sampled", 12));
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
  const Listener whole = run(with_steps("train.max_steps=8"), folder / "whole");
  run(with_steps("train.max_steps=4"), folder / "parts");
  const Listener rest = run(with_steps("train.max_steps=8"), folder / "parts", true);
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
    EXPECT_THROW(run({"train.sample_every=1", "train.sample_prompts=[\"" + prompt + "\"]"}, folder / "a"), UserError);
    EXPECT_FALSE(real_files().exists(folder / "a"));
  }
}

}  // namespace
}  // namespace redline::train
