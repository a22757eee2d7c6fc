// A run in eight bits goes on to the same bits, takes up checkpoints of other precisions and leaves some for them, and
// says where its scales come from.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/fp8_linears.h"
#include "testing/temp_folder.h"
#include "train/checkpoint.h"
#include "train/run_here.h"
#include "train/saved_state.h"

namespace redline::train {
namespace {

constexpr const char* kScales = "fp8.safetensors";

config::Config fp8_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"precision.matmul=fp8", "train.max_steps=10", "train.eval_every=0"});
  return tiny_run(overrides);
}

Path checkpoint(const Path& run, std::int64_t step) { return run / "checkpoints" / io::checkpoint_name(step); }

std::string all_tensors(const Path& run, std::int64_t step) {
  return tensors(run, step) + real_files().read(checkpoint(run, step) / kScales);
}

Ran go_on(const config::Config& config, const Path& folder, bool allow_change = false) {
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.allow_change = allow_change;
  return run_on(device, options, config, folder, true, real_files());
}

TEST(Fp8Run, StopsAndResumesToTheSameBits) {
  for (const std::vector<std::string>& with : {std::vector<std::string>{"train.accumulate=1"},
                                               {"train.accumulate=2", "train.recompute=block"},
                                               {"train.accumulate=2", "train.recompute=mlp", "model.family=\"qwen3\""},
                                               {"train.accumulate=1", "model.family=\"olmo2\""}}) {
    testing::TempFolder temp;
    const config::Config c = fp8_run(with);
    const Ran whole = run(c, temp.path() / "whole");
    ASSERT_EQ(whole.seen.steps.size(), 10u);
    std::filesystem::create_directories(temp.path() / "parts");
    std::filesystem::copy(temp.path() / "whole", temp.path() / "parts", std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(checkpoint(temp.path() / "parts", 10));
    const Ran rest = go_on(c, temp.path() / "parts");
    const std::vector<double> all = losses(whole.seen);
    EXPECT_EQ(losses(rest.seen), std::vector<double>(all.begin() + 5, all.end())) << with.back();
    EXPECT_TRUE(all_tensors(temp.path() / "whole", 10) == all_tensors(temp.path() / "parts", 10)) << with.back();
    EXPECT_FALSE(any_has(rest.seen.notes, "scales"));
  }
}

TEST(Fp8Run, IsTheSameOnADeviceThatRunsAheadAndResumedThere) {
  testing::TempFolder temp;
  const config::Config c = fp8_run();
  testing::AheadDevice first(2), second(2);
  run_on(first, {}, c, temp.path() / "whole", false, real_files());
  std::filesystem::copy(temp.path() / "whole", temp.path() / "parts", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(checkpoint(temp.path() / "parts", 10));
  run_on(second, {}, c, temp.path() / "parts", true, real_files());
  EXPECT_TRUE(all_tensors(temp.path() / "whole", 10) == all_tensors(temp.path() / "parts", 10));
}

TEST(Fp8Run, LearnsAsTheOthersDo) {
  testing::TempFolder temp;
  const Ran plain = run(tiny_run(), temp.path() / "plain");
  const Ran fp8 = run(tiny_run({"precision.matmul=fp8"}), temp.path() / "fp8");
  EXPECT_NEAR(plain.seen.evaluations.back(), fp8.seen.evaluations.back(), 0.05 * plain.seen.evaluations.back());
}

TEST(Fp8Run, CheckpointsGoOnInOtherPrecisionsAndBack) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  const auto in = [](const char* matmul, int steps) {
    return tiny_run({fmt::format("precision.matmul={}", matmul), fmt::format("train.max_steps={}", steps)});
  };
  run(in("bf16", 5), folder);
  EXPECT_FALSE(real_files().exists(checkpoint(folder, 5) / kScales));
  const Ran there = go_on(in("fp8", 10), folder, true);
  EXPECT_EQ(there.seen.steps.size(), 5u);
  EXPECT_TRUE(any_has(there.seen.notes, "has no scales of fp8 products: they are found anew, on the first batch"));
  EXPECT_TRUE(real_files().exists(checkpoint(folder, 10) / kScales));
  const Ran back = go_on(in("bf16", 15), folder, true);
  EXPECT_EQ(back.seen.steps.size(), 5u);
  EXPECT_FALSE(any_has(back.seen.notes, "scales"));
  EXPECT_FALSE(real_files().exists(checkpoint(folder, 15) / kScales));
}

TEST(Fp8Run, ScalesOfOtherProductsAreNotTakenForItsOwn) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  run(fp8_run({"train.max_steps=5"}), folder);
  const Ran rest = go_on(fp8_run({"precision.fp8_products=[\"qkv/forward\",\"down/weight\"]"}), folder, true);
  EXPECT_EQ(rest.seen.steps.size(), 5u);
  EXPECT_TRUE(any_has(rest.seen.notes, "has scales of other fp8 products"));
}

TEST(Fp8Run, DamagedScalesAreADamagedCheckpoint) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  const config::Config c = fp8_run();
  run(c, folder);
  const std::string whole = all_tensors(folder, 10);
  std::string bytes = real_files().read(checkpoint(folder, 10) / kScales);
  bytes[bytes.size() - 3] ^= 1;
  real_files().replace(checkpoint(folder, 10) / kScales, bytes);
  const Ran again = go_on(fp8_run({"train.max_steps=11"}), folder);
  EXPECT_EQ(again.seen.steps.size(), 6u);
  EXPECT_TRUE(any_has(again.seen.warnings, kScales));
  EXPECT_EQ(whole.size(), all_tensors(folder, 11).size());
}

TEST(Fp8Run, WhereNoProductTakesItTheRunGoesOnAndWarns) {
  testing::TempFolder temp;
  const Ran none = run(fp8_run({"model.hidden=24", "model.ffn=40", "train.max_steps=2"}), temp.path() / "none");
  EXPECT_EQ(none.seen.steps.size(), 2u);
  EXPECT_TRUE(any_has(none.seen.warnings, "no product takes it here: the run goes on in bf16"));
  EXPECT_FALSE(real_files().exists(checkpoint(temp.path() / "none", 2) / kScales));
  const Ran all = run(fp8_run({"train.max_steps=2"}), temp.path() / "all");
  EXPECT_FALSE(any_has(all.seen.warnings, "fp8"));
  const Ran head =
      run(fp8_run({"train.max_steps=2", "precision.matmul=bf16", "precision.head=fp8"}), temp.path() / "head");
  EXPECT_TRUE(any_has(head.seen.warnings, "precision.head = \"fp8\" counts where precision.matmul is fp8; it is bf16"));
}

TEST(Fp8Run, ScalesOfAnotherShapeAreRefusedByName) {
  testing::TempFolder temp;
  const config::Config one = fp8_run(), two = fp8_run({"precision.fp8_products=[\"qkv/forward\"]"});
  device::CpuDevice device;
  model::Engine saved(one.model, model::lowering_options(one, device.kind()), device);
  model::Engine other(two.model, model::lowering_options(two, device.kind()), device);
  saved.initialise(1);
  RunState state;
  state.step = 7;
  testing::save_checkpoint(real_files(), temp.path(), saved, one, state);
  const std::string error = error_of([&] { load_tensors(temp.path() / io::checkpoint_name(7), other); });
  EXPECT_NE(error.find("inputs has another shape"), error.npos) << error;
}

}  // namespace
}  // namespace redline::train
