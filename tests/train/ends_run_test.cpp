// Runs that end before their steps are done: what they say, what they leave, and that a resume ends them the same.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "io/best_checkpoint.h"
#include "io/json.h"
#include "testing/temp_folder.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

using Names = std::vector<std::string>;

double now = 0;  // of the clock that counts the hours: it stands but where a step was told

// Hears the steps: each takes its seconds, and one of them asks the run to stop.
struct Steps final : Observer {
  double seconds = 0;
  std::int64_t stop_after = -1;
  StopFlag stop = 0;
  void on(const Event& event) override {
    hear(event, [&](const Stepped& e) {
      now += seconds;
      if (e.step == stop_after) stop = SIGTERM;
    });
  }
};

Ran run_with(Steps& steps, const config::Config& config, const Path& folder, bool resume = false) {
  device::CpuDevice device(2);
  TrainOptions options;
  options.observers = {&steps};
  options.stop = &steps.stop;
  options.hours_clock = [] { return now; };
  return run_on(device, options, config, folder, resume, real_files());
}

// It learns nothing: the first evaluation is the best one.
config::Config stuck(std::vector<std::string> more) {
  more.insert(more.begin(),
              {"optim.lr=0", "optim.min_lr=0", "train.eval_every=2", "checkpoint.every=0", "checkpoint.keep=1"});
  return tiny_run(more);
}

TEST(EndsOfRuns, PatienceEndsARunAndTheBestCheckpointStays) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run", checkpoints = folder / "checkpoints";
  const Ran ran = run(stuck({"train.patience=3"}), folder);
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.result.steps, 8);
  ASSERT_TRUE(ran.result.eval_loss.has_value());
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{2, 8}));
  EXPECT_EQ(real_files().list(checkpoints), (Names{"best", "step_00000002", "step_00000008"}));
  EXPECT_EQ(io::best_checkpoint(checkpoints), 2);
  EXPECT_EQ(real_files().read(checkpoints / "best/model.safetensors"),
            real_files().read(checkpoints / "step_00000002/model.safetensors"));
  ASSERT_EQ(ran.seen.endings.size(), 1u);
  const std::string end = fmt::format(
      "8 steps done, held-out loss {0:.4f}; no better held-out loss in 3 evaluations since step 2 ({0:.4f}): "
      "train.patience; the best checkpoint is that of step 2 ({0:.4f})",
      *ran.result.eval_loss);
  EXPECT_EQ(ran.seen.endings[0], end);

  const Ran again = run(stuck({"train.patience=3"}), folder, true);
  EXPECT_EQ(again.result.outcome, Outcome::already_finished);
  ASSERT_EQ(again.seen.endings.size(), 1u);
  EXPECT_NE(again.seen.endings[0].find("run: nothing is left to do after 8 steps: no better held-out loss in 3 "
                                       "evaluations"),
            std::string::npos)
      << again.seen.endings[0];
  EXPECT_TRUE(again.seen.endings[0].ends_with("; a larger train.patience, or 0, lets it go on"));

  const Ran more = run(stuck({"train.patience=5"}), folder, true);
  EXPECT_EQ(more.result.outcome, Outcome::finished);
  EXPECT_EQ(more.result.steps, 12);
  EXPECT_EQ(real_files().list(checkpoints), (Names{"best", "step_00000002", "step_00000008", "step_00000012"}));
  // Without the key nothing is counted, and what is called best stays.
  const Ran rest = run(stuck({"train.max_steps=14"}), folder, true);
  EXPECT_EQ(rest.result.steps, 14);
  EXPECT_EQ(real_files().list(checkpoints), (Names{"best", "step_00000002", "step_00000012", "step_00000014"}));
}

TEST(EndsOfRuns, AStopInTheMiddleChangesNothing) {
  testing::TempFolder temp;
  for (const std::int64_t stop : {1, 2, 5, 6, 7}) {
    const Path folder = temp.path() / std::to_string(stop);
    Steps first, second;
    first.stop_after = stop;
    EXPECT_EQ(run_with(first, stuck({"train.patience=3"}), folder).result.outcome, Outcome::stopped);
    const Ran rest = run_with(second, stuck({"train.patience=3"}), folder, true);
    EXPECT_EQ(rest.result.outcome, Outcome::finished);
    EXPECT_EQ(rest.result.steps, 8) << stop;
    Names left = {"best", "step_00000002", "step_00000008"};
    if (stop > 2) left.insert(left.begin() + 2, io::checkpoint_name(stop));  // it is held to be good
    EXPECT_EQ(real_files().list(folder / "checkpoints"), left) << stop;
  }
}

TEST(EndsOfRuns, ALossThatIsReachedEndsARunOnItsWay) {
  testing::TempFolder temp;
  const std::vector<std::string> keys = {"train.eval_every=5", "train.max_steps=20", "checkpoint.every=0"};
  const Ran whole = run(tiny_run(keys), temp.path() / "whole");
  ASSERT_EQ(whole.seen.evaluations.size(), 5u);  // before the first step, and after 5, 10, 15, 20
  const double target = whole.seen.evaluations[2];
  ASSERT_LT(target, whole.seen.evaluations[1]);
  std::vector<std::string> with = keys;
  with.push_back(fmt::format("train.target_loss={}", target + 1e-6));
  const Ran ran = run(tiny_run(with), temp.path() / "run");
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.result.steps, 10);
  EXPECT_EQ(ran.result.eval_loss, target);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{5, 10}));  // each was the best
  EXPECT_EQ(io::best_checkpoint(temp.path() / "run/checkpoints"), 10);
  EXPECT_NE(ran.seen.endings[0].find(fmt::format("held-out loss {:.4f} reached train.target_loss", target)),
            std::string::npos)
      << ran.seen.endings[0];
}

TEST(EndsOfRuns, TheHoursAreOverBehindAStepWithAnEvaluationAndASave) {
  testing::TempFolder temp;
  const config::Config c =
      tiny_run({"train.max_hours=0.0975", "train.max_steps=30", "train.eval_every=0", "checkpoint.every=0"});
  Steps whole;
  whole.seconds = 36;  // 351 s have room for nine steps, and the tenth is made when they are over
  const Ran ran = run_with(whole, c, temp.path() / "run");
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.result.steps, 10);
  EXPECT_TRUE(ran.result.eval_loss.has_value());
  EXPECT_EQ(ran.seen.saves, std::vector<std::int64_t>{10});
  EXPECT_TRUE(ran.seen.endings[0].ends_with("; train.max_hours = 0.0975 are over after step 10"))
      << ran.seen.endings[0];
  Steps again;
  EXPECT_EQ(run_with(again, c, temp.path() / "run", true).result.outcome, Outcome::already_finished);

  // The hours of a session that was stopped count; those between two sessions do not.
  Steps first, second;
  first.seconds = second.seconds = 36;
  first.stop_after = 4;
  run_with(first, c, temp.path() / "parts");
  now += 1e6;
  const Ran rest = run_with(second, c, temp.path() / "parts", true);
  EXPECT_EQ(rest.result.outcome, Outcome::finished);
  EXPECT_EQ(rest.result.steps, 10);
  EXPECT_EQ(tensors(temp.path() / "parts", 10), tensors(temp.path() / "run", 10));
}

TEST(EndsOfRuns, TheScheduleFitsTheHours) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_hours=0.4", "train.fit_hours=true", "train.max_steps=0",
                                     "train.eval_every=0", "checkpoint.every=0", "optim.warmup_steps=4"});
  Steps steps;
  steps.seconds = 36;
  steps.stop_after = 30;
  const Ran first = run_with(steps, c, temp.path() / "run");
  ASSERT_EQ(first.seen.notes.size(), 1u);
  EXPECT_NE(first.seen.notes[0].find("at 36 s a step"), std::string::npos) << first.seen.notes[0];
  for (const StepMetrics& m : first.seen.steps) {  // a tenth of the hours is over behind the fifth
    if (m.step > 4 && m.step <= 7) {
      EXPECT_DOUBLE_EQ(m.lr, c.optim.lr) << m.step;
    } else {
      EXPECT_LT(m.lr, c.optim.lr) << m.step;
    }
  }
  const io::Json state =
      io::read_json(real_files(), temp.path() / "run/checkpoints" / io::checkpoint_name(30) / "state.json");
  Steps others;
  others.seconds = 36;
  const Ran rest = run_with(others, c, temp.path() / "run", true);
  EXPECT_EQ(rest.result.outcome, Outcome::finished);
  EXPECT_EQ(rest.result.steps, state["ends"]["fitted_steps"]);
  EXPECT_GE(rest.result.steps, 39);  // of the 40 that 1440 s have room for
  EXPECT_LE(rest.result.steps, 40);
  EXPECT_EQ(rest.seen.steps.back().lr, c.optim.min_lr);
}

}  // namespace
}  // namespace redline::train
