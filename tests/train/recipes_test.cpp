// Runs of every recipe go on to the same bits and take up checkpoints of others where that is allowed: averages of the
// weights, norms and noise, products in eight bits, moments of fewer bits, ramps, zeros and penalties.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "config/ramps.h"
#include "io/safetensors.h"
#include "model/fp8_linears.h"
#include "testing/ranks_here.h"
#include "testing/temp_folder.h"
#include "testing/thread_group.h"
#include "train/checkpoint.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

config::Config averaging(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"train.max_steps=20", "train.average=ema", "train.average_steps=6"});
  return tiny_run(overrides);
}

std::string file(const Path& run, std::int64_t step, const char* name) {
  return real_files().read(checkpoint(run, step) / name);
}

TEST(AverageRun, IsEvaluatedBesideTheWeightsAndChangesNothingOfThem) {
  testing::TempFolder temp;
  const Ran plain = run(tiny_run({"train.max_steps=20"}), temp.path() / "plain");
  for (const char* kind : {"ema", "last"}) {
    const Path folder = temp.path() / kind;
    const Ran ran = run(averaging({fmt::format("train.average={}", kind)}), folder);
    EXPECT_EQ(losses(ran.seen), losses(plain.seen));
    EXPECT_EQ(ran.seen.evaluations, plain.seen.evaluations);
    EXPECT_EQ(tensors(folder, 20), tensors(temp.path() / "plain", 20));
    for (const StepMetrics& m : ran.seen.steps) {
      const bool there = m.eval_loss && (m.step == 20 || std::string_view(kind) == "ema");
      ASSERT_EQ(m.eval_loss_average.has_value(), there) << kind << " " << m.step;
      if (there) {
        EXPECT_NE(*m.eval_loss_average, *m.eval_loss);
        EXPECT_NEAR(*m.eval_loss_average, *m.eval_loss, 1.5);
      }
    }
    EXPECT_TRUE(any_has(ran.seen.endings, ", of the average "));
    EXPECT_NE(file(folder, 20, "average.safetensors"), file(folder, 20, "model.safetensors"));
  }
  EXPECT_FALSE(real_files().exists(checkpoint(temp.path() / "plain", 20) / "average.safetensors"));
}

// The plain mean over the weights of four checkpoints.
TEST(AverageRun, LastIsTheMeanOfItsCheckpoints) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  run(averaging({"train.average=last", "train.average_steps=4", "checkpoint.every=1", "checkpoint.keep=5",
                 "train.max_steps=10"}),
      folder);
  const auto open = [&](std::int64_t step, const char* name) {
    return io::WeightFiles(real_files(), folder / "checkpoints" / io::checkpoint_name(step), name);
  };
  EXPECT_EQ(file(folder, 7, "average.safetensors"), file(folder, 7, "model.safetensors")) << "the first of the four";
  const io::WeightFiles average = open(10, "average.safetensors");
  std::vector<io::WeightFiles> weights;
  for (std::int64_t step = 7; step <= 10; ++step) weights.push_back(open(step, "model.safetensors"));
  for (const io::StoredTensor& t : average.files()[0].reader->tensors())
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      const auto at = [i](const io::StoredTensor& of) {
        float x = 0;
        std::memcpy(&x, of.bytes.data() + 4 * i, 4);
        return static_cast<double>(x);
      };
      double mean = 0;
      for (const io::WeightFiles& w : weights) mean += at(w.at(t.name)) / 4;
      ASSERT_NEAR(at(t), mean, 1e-6) << t.name;
    }
}

TEST(AverageRun, StopsAndResumesToTheSameBits) {
  for (const char* kind : {"ema", "last"}) {
    testing::TempFolder temp;
    const config::Config c = averaging({fmt::format("train.average={}", kind)});
    const Ran whole = run(c, temp.path() / "whole");
    copy_without(20, temp.path() / "whole", temp.path() / "parts");
    const Ran rest = go_on(c, temp.path() / "parts", true);
    ASSERT_EQ(rest.seen.steps.size(), 5u);
    EXPECT_EQ(rest.seen.steps.back().eval_loss_average, whole.seen.steps.back().eval_loss_average);
    EXPECT_FALSE(any_has(rest.seen.notes, "average"));
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "average.safetensors"})
      EXPECT_TRUE(file(temp.path() / "whole", 20, name) == file(temp.path() / "parts", 20, name)) << name;
  }
}

TEST(AverageRun, IsSwitchedOnLaterAndOffAgain) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  run(tiny_run({"train.max_steps=5"}), folder);
  const Ran on = go_on(averaging({"train.max_steps=6"}), folder, true);
  EXPECT_TRUE(any_has(on.seen.notes, "has no average of the weights"));
  const Ran other = go_on(averaging({"train.max_steps=7", "train.average=last"}), folder, true);
  EXPECT_TRUE(any_has(other.seen.notes, "has an average of another kind"));
  const Ran off = go_on(tiny_run({"train.max_steps=8"}), folder, true);
  EXPECT_FALSE(any_has(off.seen.notes, "it begins with the weights"));
  EXPECT_EQ(off.seen.steps.size(), 1u);
}

// A signal while the average is evaluated: what is saved is the weights, as they were.
TEST(AverageRun, ASignalDuringItsEvaluationLeavesTheWeights) {
  testing::TempFolder temp;
  const config::Config c = averaging({"checkpoint.every=10"});
  run(c, temp.path() / "whole");
  StopFlag stop = 0;
  int evaluated = 0;
  Hears stopper([&](const Evaluated& e) { evaluated += e.step == 10 ? 1 : 0; },
                [&](const Evaluating&) {
                  if (evaluated > 0) stop = SIGTERM;
                });
  testing::WatchedDevice device(2);
  const Ran stopped = run_on(device, options_for(c, {}, {&stopper}, &stop), c, temp.path() / "stopped");
  EXPECT_EQ(stopped.result.steps, 10);
  for (const char* name : {"model.safetensors", "average.safetensors"})
    EXPECT_TRUE(file(temp.path() / "whole", 10, name) == file(temp.path() / "stopped", 10, name)) << name;
}

TEST(AverageRun, RanksKeepTheirPartsOfIt) {
  testing::TempFolder temp;
  const auto train_on = [&](dist::Mode mode) {
    const Path folder = temp.path() / std::string(name_of(mode));
    testing::RanksHere words(2), saving(2);
    testing::ThreadGroup::Common common(2);
    Recorder seen;
    const std::vector<std::string> errors = words.run([&](io::Communicator& communicator) {
      const int rank = communicator.rank();
      testing::ThreadGroup group(common, rank);
      testing::RanksHere::One beside(saving, rank);
      device::CpuDevice device(1);
      TrainOptions options =
          options_for(averaging({"parallel.ranks=2", "train.batch_size=1", "log.norms_every=5"}), folder);
      if (rank == 0) options.observers = {&seen};
      options.team.sharing = {rank, 2, mode, false};
      options.team.group = &group;
      options.team.communicator = &communicator;
      options.team.saving = &beside;
      train(options, device, real_files());
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    return seen;
  };
  const Recorder ddp = train_on(dist::Mode::ddp), zero1 = train_on(dist::Mode::zero1);
  ASSERT_EQ(zero1.steps.size(), 20u);
  EXPECT_EQ(zero1.steps.back().eval_loss_average, ddp.steps.back().eval_loss_average);
  ASSERT_TRUE(zero1.steps.back().norms);
  EXPECT_TRUE(zero1.steps.back().norms->update);
  EXPECT_NEAR(*zero1.steps.back().norms->weight, *ddp.steps.back().norms->weight, 1e-6);
  EXPECT_TRUE(file(temp.path() / "zero1", 20, "average.safetensors") ==
              file(temp.path() / "ddp", 20, "average.safetensors"));
}

TEST(NormsRun, LooksAtTheFirstStepAndEveryFewAndTellsTheNoiseOfSeveralMicroBatches) {
  testing::TempFolder temp;
  const Ran plain = run(tiny_run({"train.max_steps=20"}), temp.path() / "plain");
  const Ran seen = run(tiny_run({"train.max_steps=20", "log.norms_every=4"}), temp.path() / "seen");
  EXPECT_EQ(losses(seen.seen), losses(plain.seen));
  int scales = 0;
  for (const StepMetrics& m : seen.seen.steps) {
    ASSERT_EQ(m.norms.has_value(), m.step == 1 || m.step % 4 == 0) << m.step;
    if (!m.norms) continue;
    scales += m.norms->noise_scale ? 1 : 0;
    double gradient = 0, weight = 0;
    for (const model::TensorNorm& t : m.norms->tensors) {
      gradient += t.gradient * t.gradient;
      weight += t.weight * t.weight;
    }
    EXPECT_NEAR(std::sqrt(gradient), m.grad_norm, 1e-5 * m.grad_norm);
    EXPECT_NEAR(std::sqrt(weight), *m.norms->weight, 1e-9 * *m.norms->weight);
  }
  EXPECT_GT(scales, 0);
  const Ran one = run(tiny_run({"train.max_steps=4", "log.norms_every=1", "train.accumulate=1"}), temp.path() / "one");
  for (const StepMetrics& m : one.seen.steps) {
    ASSERT_TRUE(m.norms);
    EXPECT_FALSE(m.norms->noise_scale) << "of one size nothing can be told";
  }
}

constexpr const char* kScales = "fp8.safetensors";

config::Config fp8_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"precision.matmul=fp8", "train.max_steps=10", "train.eval_every=0"});
  return tiny_run(overrides);
}

std::string all_tensors(const Path& run, std::int64_t step) {
  return tensors(run, step) + real_files().read(checkpoint(run, step) / kScales);
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
    copy_without(10, temp.path() / "whole", temp.path() / "parts");
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
  copy_without(10, temp.path() / "whole", temp.path() / "parts");
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
  EXPECT_TRUE(any_has(there.seen.notes, "has no scales of fp8 products"));
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
  EXPECT_TRUE(any_has(none.seen.warnings, {"no product", "bf16"}));
  EXPECT_FALSE(real_files().exists(checkpoint(temp.path() / "none", 2) / kScales));
  const Ran all = run(fp8_run({"train.max_steps=2"}), temp.path() / "all");
  EXPECT_FALSE(any_has(all.seen.warnings, "fp8"));
  const Ran head =
      run(fp8_run({"train.max_steps=2", "precision.matmul=bf16", "precision.head=fp8"}), temp.path() / "head");
  EXPECT_TRUE(any_has(head.seen.warnings, {"precision.head = \"fp8\"", "precision.matmul", "bf16"}));
}

TEST(Fp8Run, ScalesOfAnotherShapeAreRefusedByName) {
  testing::TempFolder temp;
  const config::Config one = fp8_run(), two = fp8_run({"precision.fp8_products=[\"qkv/forward\"]"});
  device::CpuDevice device;
  model::Engine saved(one.model, model::lowering_options(one, device.kind()), device);
  model::Engine other(two.model, model::lowering_options(two, device.kind()), device);
  saved.initialise(1);
  save_checkpoint(real_files(), temp.path(), saved, one, at_step(7));
  const std::string error = error_of([&] { load_tensors(temp.path() / io::checkpoint_name(7), other); });
  EXPECT_TRUE(says(error, {"inputs has another shape"}));
}

config::Config with_moments(const std::string& moments) {
  return tiny_run({"optim.moments=\"" + moments + "\"", "train.max_steps=10", "train.eval_every=0"});
}

TEST(MomentsRun, StopsAndResumesToTheSameBits) {
  for (const char* moments : {"bf16", "8bit"}) {
    testing::TempFolder temp;
    const Ran whole = run(with_moments(moments), temp.path() / "whole");
    copy_without(10, temp.path() / "whole", temp.path() / "parts");
    const Ran rest = go_on(with_moments(moments), temp.path() / "parts");
    const std::vector<double> all = losses(whole.seen);
    EXPECT_EQ(losses(rest.seen), std::vector<double>(all.begin() + 5, all.end())) << moments;
    EXPECT_TRUE(tensors(temp.path() / "whole", 10) == tensors(temp.path() / "parts", 10)) << moments;
  }
}

TEST(MomentsRun, GoesOnFromACheckpointOfAnotherKind) {
  testing::TempFolder temp;
  for (const std::string was : {"fp32", "bf16", "8bit"}) {
    const Path before = temp.path() / was;
    const std::vector<double> all = losses(run(with_moments(was), before).seen);
    for (const std::string is : {"fp32", "bf16", "8bit"}) {
      if (is == was) continue;
      const Path after = temp.path() / (was + " to " + is);
      copy_without(10, before, after);
      EXPECT_TRUE(any_has({error_of([&] { go_on(with_moments(is), after); })}, "--allow-change"));
      const Ran rest = go_on(with_moments(is), after, true);
      EXPECT_TRUE(any_has(rest.seen.notes, "moments are converted from " + was + " to " + is));
      const std::vector<double> got = losses(rest.seen);
      ASSERT_EQ(got.size(), 5u);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], all[i + 5], 0.02 * all[i + 5]) << was << " to " << is;
    }
  }
}

// Masters that are kept in bf16, of products in fp32 and in eight bits: a checkpoint holds them as they are.
TEST(MastersRun, StopsAndResumesToTheSameBitsAndGoesOnFromTheOtherKind) {
  for (const char* matmul : {"bf16", "fp8"}) {
    const auto with_masters = [&](const char* masters) {
      return fp8_run({fmt::format("precision.matmul={}", matmul), fmt::format("precision.masters={}", masters),
                      "train.max_steps=10", "train.eval_every=0"});
    };
    testing::TempFolder temp;
    for (const char* was : {"bf16", "fp32"}) {
      const Ran whole = run(with_masters(was), temp.path() / was);
      const std::vector<double> all = losses(whole.seen);
      ASSERT_EQ(all.size(), 10u);
      for (const char* is : {"bf16", "fp32"}) {
        const Path after = temp.path() / fmt::format("{} to {}", was, is);
        copy_without(10, temp.path() / was, after);
        const bool same = std::string_view(was) == is;
        if (!same) {
          EXPECT_TRUE(any_has({error_of([&] { go_on(with_masters(is), after); })}, "--allow-change"));
        }
        const Ran rest = go_on(with_masters(is), after, !same);
        EXPECT_EQ(any_has(rest.seen.notes, "weights are rounded from fp32 to bf16"),
                  !same && is == std::string("bf16"));
        EXPECT_EQ(any_has(rest.seen.notes, "weights are taken from bf16 to fp32"), !same && is == std::string("fp32"));
        EXPECT_FALSE(any_has(rest.seen.notes, "nothing of them is converted"));
        const std::vector<double> got = losses(rest.seen);
        ASSERT_EQ(got.size(), 5u);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_NEAR(got[i], all[i + 5], same ? 0 : 0.02 * all[i + 5]) << matmul << ", " << was << " to " << is;
        if (same) {
          EXPECT_TRUE(tensors(temp.path() / was, 10) == tensors(after, 10)) << matmul << ", " << was;
        }
      }
    }
  }
}

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

TEST(BatchRamp, GoesOnToTheSameBits) {
  testing::TempFolder temp;
  expect_the_same_in_parts(growing_batch({"train.eval_every=0"}), temp.path());
}

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
  EXPECT_TRUE(says(refused, {"train.accumulate_from = 1, not 2", "--allow-change"}));
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
  testing::TempFolder temp;
  expect_the_same_in_parts(growing_length({"train.eval_every=0", "data.workers=2", "data.prefetch=8"}), temp.path());
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
