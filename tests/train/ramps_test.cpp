// Runs whose first steps are smaller or have shorter documents: what they count, that they go on to the same bits, and
// that everything else is as it was. Also runs that begin with zeros or with a penalty on logits.
#include "config/ramps.h"

#include <gtest/gtest.h>

#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

config::Config growing_batch(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train.accumulate=5", "train.accumulate_from=1", "train.accumulate_ramp_steps=6",
                             "train.batch_size=1", "data.packing=stream", "train.max_steps=10"});
  return tiny_run(std::move(more));
}

config::Config growing_length(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train.seq_len_from=10", "train.seq_len_ramp_steps=6", "data.max_segments=32",
                             "train.max_steps=10", "train.eval_every=5"});
  return tiny_run(std::move(more));
}

// Steps one by one, each in a run of its own.
void expect_the_same_in_parts(const config::Config& config) {
  testing::TempFolder temp;
  const Ran whole = run(config, temp.path() / "whole");
  const int steps = static_cast<int>(whole.seen.steps.size());
  std::vector<double> seen;
  for (int i = 0; i < steps; ++i) {
    const Ran part = run(config, temp.path() / "parts", true, real_files(), i + 1 < steps);
    ASSERT_EQ(part.seen.steps.size(), 1u);
    seen.push_back(part.seen.steps[0].loss);
  }
  EXPECT_EQ(seen, losses(whole.seen));
  EXPECT_TRUE(tensors(temp.path() / "whole", steps) == tensors(temp.path() / "parts", steps));
}

TEST(BatchRamp, EveryStepHasItsMicroBatches) {
  testing::TempFolder temp;
  const config::Config c = growing_batch();
  const Ran ran = run(c, temp.path() / "run");
  ASSERT_EQ(ran.seen.steps.size(), 10u);
  for (const StepMetrics& m : ran.seen.steps) {
    const std::int64_t slots = 64 * config::micro_batches(c.train, m.step - 1);
    EXPECT_LE(m.tokens, slots);
    EXPECT_GT(m.tokens, slots * 3 / 4) << m.step;  // last tokens of documents have no target
    EXPECT_NEAR(m.padding, 0, 0.05) << m.step;
  }
  EXPECT_LT(ran.seen.steps[0].tokens, ran.seen.steps[9].tokens / 4);
  EXPECT_LT(ran.seen.evaluations.back(), ran.seen.evaluations.front());
}

TEST(BatchRamp, ReadsTheDocumentsInTheirOrder) {
  testing::TempFolder temp;
  const Ran grown = run(growing_batch(), temp.path() / "grown");
  const Ran plain = run(growing_batch({"train.accumulate=1", "train.accumulate_from=0", "train.accumulate_ramp_steps=0",
                                       "train.max_steps=36"}),
                        temp.path() / "plain");
  std::size_t micro = 0;
  for (const StepMetrics& m : grown.seen.steps) {
    std::int64_t tokens = 0;
    for (std::int64_t i = config::micro_batches(growing_batch().train, m.step - 1); i > 0; --i)
      tokens += plain.seen.steps.at(micro++).tokens;
    EXPECT_EQ(m.tokens, tokens) << m.step;
  }
  EXPECT_EQ(micro, plain.seen.steps.size());
  EXPECT_EQ(grown.seen.steps[0].loss, plain.seen.steps[0].loss);
}

TEST(BatchRamp, TokensEndTheRunWhereTheyShould) {
  testing::TempFolder temp;
  const config::Config c = growing_batch({"train.max_steps=0", "train.max_tokens=1600"});  // 25 rows: 1 2 2 3 4 4 5 5
  const Ran ran = run(c, temp.path() / "run");
  EXPECT_EQ(ran.result.steps, 8);
  EXPECT_EQ(config::micro_batches_before(c.train, 8), 26);
  EXPECT_EQ(ran.seen.steps.back().lr, c.optim.min_lr) << "the schedule knew";
}

TEST(BatchRamp, GoesOnToTheSameBits) { expect_the_same_in_parts(growing_batch({"train.eval_every=0"})); }

TEST(BatchRamp, IsTheSameOnADeviceThatRunsAhead) {
  testing::TempFolder temp;
  const config::Config c = growing_batch();
  const Ran here = run(c, temp.path() / "here");
  testing::AheadDevice device(2);
  const Ran ahead = run_on(device, {}, c, temp.path() / "ahead", false, real_files());
  EXPECT_EQ(losses(here.seen), losses(ahead.seen));
  EXPECT_TRUE(tensors(temp.path() / "here", 10) == tensors(temp.path() / "ahead", 10));
}

TEST(BatchRamp, AnotherOneNeedsPermissionOnResume) {
  testing::TempFolder temp;
  run(growing_batch({"train.max_steps=1"}), temp.path());
  const std::string refused = error_of([&] { run(growing_batch({"train.accumulate_from=2"}), temp.path(), true); });
  EXPECT_NE(refused.find("train.accumulate_from = 1, not 2"), std::string::npos) << refused;
  EXPECT_NE(refused.find("--allow-change"), std::string::npos) << refused;
}

TEST(LengthRamp, CutsDocumentsAndNothingElse) {
  testing::TempFolder temp;
  const config::Config c = growing_length();
  const Ran grown = run(c, temp.path() / "grown");
  const Ran plain =
      run(tiny_run({"data.max_segments=32", "train.max_steps=10", "train.eval_every=5"}), temp.path() / "plain");
  ASSERT_EQ(grown.seen.steps.size(), plain.seen.steps.size());
  EXPECT_EQ(grown.seen.evaluations[0], plain.seen.evaluations[0]) << "evaluation is not cut";
  for (std::size_t i = 0; i < grown.seen.steps.size(); ++i) {
    const StepMetrics &g = grown.seen.steps[i], &p = plain.seen.steps[i];
    EXPECT_EQ(g.tokens, p.tokens) << i;
    EXPECT_EQ(g.padding, p.padding) << i;
    const double flops = g.tflops * g.step_ms, whole = p.tflops * p.step_ms;
    if (i < 6)
      EXPECT_LT(flops, whole) << "shorter documents have fewer pairs of tokens, step " << i;
    else
      EXPECT_NEAR(flops, whole, 1e-9 * whole) << i;
  }
  EXPECT_NE(grown.seen.steps[0].loss, plain.seen.steps[0].loss);
}

TEST(LengthRamp, GoesOnToTheSameBitsWhateverWasMadeAhead) {
  expect_the_same_in_parts(growing_length({"train.eval_every=0", "data.workers=2", "data.prefetch=8"}));
  testing::TempFolder temp;
  const Ran here = run(growing_length({"data.workers=0"}), temp.path() / "a");
  const Ran ahead = run(growing_length({"data.workers=2", "data.prefetch=8"}), temp.path() / "b");
  EXPECT_EQ(losses(here.seen), losses(ahead.seen));
}

TEST(LengthRamp, HasRoomForDocumentsOfAnyPacking) {
  for (const char* packing : {"pad", "bucket", "pack", "stream"}) {
    testing::TempFolder temp;
    const Ran ran = run(growing_length({"data.max_segments=8", std::string("data.packing=") + packing,
                                        "train.max_steps=4", "train.eval_every=0", "checkpoint.every=0"}),
                        temp.path() / "run");
    EXPECT_EQ(ran.seen.steps.size(), 4u) << packing;
  }
}

TEST(ZeroOut, LearnsInEveryFamilyAndInEightBits) {
  for (const char* family : {"llama", "qwen3", "olmo2"}) {
    for (const char* matmul : {"bf16", "fp8"}) {
      testing::TempFolder temp;
      const Ran ran = run(tiny_run({"model.init=zero_out", std::string("model.family=") + family,
                                    std::string("precision.matmul=") + matmul, "train.max_steps=12",
                                    "train.eval_every=12", "checkpoint.every=0"}),
                          temp.path() / "run");
      EXPECT_TRUE(ran.seen.skipped.empty()) << family << " " << matmul;
      EXPECT_LT(ran.seen.evaluations.back(), ran.seen.evaluations.front() - 0.2) << family << " " << matmul;
    }
  }
}

TEST(ZLoss, ChangesWhatIsLearnedAndNotHowItIsCounted) {
  testing::TempFolder temp;
  const std::vector<std::string> words = {"train.max_steps=6", "train.eval_every=6", "train.z_loss=0.01"};
  const Ran plain = run(tiny_run({words[0], words[1]}), temp.path() / "plain");
  const Ran with = run(tiny_run(words), temp.path() / "with");
  EXPECT_EQ(with.seen.steps[0].loss, plain.seen.steps[0].loss);
  EXPECT_EQ(with.seen.evaluations[0], plain.seen.evaluations[0]);
  EXPECT_NE(with.seen.steps[0].grad_norm, plain.seen.steps[0].grad_norm);
  EXPECT_NE(with.seen.steps[5].loss, plain.seen.steps[5].loss);
}

TEST(WeightDecayFalls, WithTheRate) {
  testing::TempFolder temp;
  const std::vector<std::string> words = {"train.max_steps=4", "train.eval_every=0", "optim.weight_decay=3"};
  const auto with = [&](const char* word) {
    std::vector<std::string> all = words;
    all.emplace_back(word);
    return losses(run(tiny_run(all), temp.path() / word).seen);
  };
  const std::vector<double> constant = with("optim.weight_decay_falls=false"),
                            falls = with("optim.weight_decay_falls=true");
  EXPECT_EQ(constant[0], falls[0]);
  EXPECT_NE(constant[3], falls[3]);
}

}  // namespace
}  // namespace redline::train
