// Runs with an average of their weights: it is evaluated beside them, goes on to the same bits, and is taken up by runs
// that had none; and runs that look at norms and noise.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>

#include "io/weight_files.h"
#include "testing/ranks_here.h"
#include "testing/temp_folder.h"
#include "testing/thread_group.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

config::Config averaging(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"train.max_steps=20", "train.average=ema", "train.average_steps=6"});
  return tiny_run(overrides);
}

std::string file(const Path& run, std::int64_t step, const char* name) {
  return real_files().read(run / "checkpoints" / io::checkpoint_name(step) / name);
}

Ran go_on(const config::Config& config, const Path& folder) {
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.allow_change = true;
  return run_on(device, options, config, folder, true, real_files());
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
  EXPECT_FALSE(
      real_files().exists(temp.path() / "plain/checkpoints" / io::checkpoint_name(20) / "average.safetensors"));
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
    std::filesystem::copy(temp.path() / "whole", temp.path() / "parts", std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(temp.path() / "parts/checkpoints" / io::checkpoint_name(20));
    const Ran rest = go_on(c, temp.path() / "parts");
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
  const Ran on = go_on(averaging({"train.max_steps=6"}), folder);
  EXPECT_TRUE(any_has(on.seen.notes, "has no average of the weights: it begins with the weights as they are"));
  const Ran other = go_on(averaging({"train.max_steps=7", "train.average=last"}), folder);
  EXPECT_TRUE(any_has(other.seen.notes, "has an average of another kind"));
  const Ran off = go_on(tiny_run({"train.max_steps=8"}), folder);
  EXPECT_FALSE(any_has(off.seen.notes, "it begins with the weights"));
  EXPECT_EQ(off.seen.steps.size(), 1u);
}

// A signal while the average is evaluated: what is saved is the weights, as they were.
TEST(AverageRun, ASignalDuringItsEvaluationLeavesTheWeights) {
  struct StopInAverage final : Observer {
    StopFlag* stop = nullptr;
    int evaluated = 0;
    void on(const Event& event) override {
      hear(
          event, [&](const Evaluated& e) { evaluated += e.step == 10 ? 1 : 0; },
          [&](const Evaluating&) {
            if (evaluated > 0) *stop = SIGTERM;
          });
    }
  };
  testing::TempFolder temp;
  const config::Config c = averaging({"checkpoint.every=10"});
  run(c, temp.path() / "whole");
  StopFlag stop = 0;
  StopInAverage observer;
  observer.stop = &stop;
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.stop = &stop;
  options.observers = {&observer};
  const Ran stopped = run_on(device, options, c, temp.path() / "stopped", false, real_files());
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
      TrainOptions options;
      options.config = averaging({"parallel.ranks=2", "train.batch_size=1", "log.norms_every=5"});
      options.folder = folder;
      options.peak_flops = 1e11;
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

}  // namespace
}  // namespace redline::train
