// When a run ends before its steps are done, by a clock that the test turns; and whole runs that do: what they say,
// what they leave, and that a resume ends them the same.
#include "train/ends.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <vector>

#include "config/ramps.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "optim/schedule.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

double hours_clock = 0;  // seconds, as the clock of a test says
double clock_of_test() { return hours_clock; }

config::Config with(double hours, bool fit = false) {
  config::Config c;
  c.train.max_hours = hours;
  c.train.fit_hours = fit;
  c.train.eval_every = 10;
  c.checkpoint.minutes = 0;
  return c;
}

// One session of a run in which everything takes its time.
struct TimedSession {
  config::Config config;
  std::vector<std::string> told;
  std::int64_t step = 0;
  double a_step = 1, evaluation = 0, save = 0;
  std::unique_ptr<Ends> ends;

  TimedSession(const config::Config& c, std::int64_t steps) : config(c) {
    const auto tell = [this](const std::string& text, std::int64_t) { told.push_back(text); };
    ends = std::make_unique<Ends>(config, steps, tell, clock_of_test);
  }

  void resume(const EndsState& state, std::int64_t at) {
    step = at;
    ends->restore(state, at);
  }

  bool over() const { return ends->over() || step >= ends->steps(); }

  void spend(Ends::Aside aside, double seconds) {
    const Ends::Timed timed = ends->timed(aside);
    hours_clock += seconds;
  }

  void make_step() {
    hours_clock += a_step;
    ends->stepped(++step);
    const bool last = over();
    if (last || step % config.train.eval_every == 0) spend(Ends::Aside::evaluation, evaluation);
    if (last || (config.checkpoint.every > 0 && step % config.checkpoint.every == 0)) spend(Ends::Aside::save, save);
  }

  void run_to(std::int64_t last) {
    while (!over() && step < last) make_step();
  }
};

constexpr std::int64_t kFar = 1'000'000'000;

Ends of_losses(const config::Config& c) {
  return Ends(
      c, 1000, [](const std::string&, std::int64_t) {}, clock_of_test);
}

TEST(Ends, PatienceCountsEvaluationsWithoutABetterLoss) {
  config::Config c;
  c.train.patience = 3;
  Ends ends = of_losses(c);
  const std::vector<double> losses = {3.0, 2.5, 2.6, 2.5, 2.4, 2.4, 2.6, 2.5};
  std::vector<std::int64_t> better;
  std::int64_t step = 0;
  for (const double loss : losses) {
    EXPECT_FALSE(ends.over()) << step;
    step += 100;
    if (ends.evaluated(step, loss)) better.push_back(step);
  }
  EXPECT_EQ(better, (std::vector<std::int64_t>{100, 200, 500}));
  EXPECT_TRUE(ends.over());
  EXPECT_EQ(
      ends.ending(),
      "; no better held-out loss in 3 evaluations since step 500 (2.4000): train.patience; the best checkpoint is "
      "that of step 500 (2.4000)");
  EXPECT_EQ(ends.nothing_left(),
            ": no better held-out loss in 3 evaluations since step 500 (2.4000): train.patience; a larger "
            "train.patience, or 0, lets it go on");
}

// Stopped after any evaluation, it ends where it would have.
TEST(Ends, GoesOnCountingWhereItWas) {
  config::Config c;
  c.train.patience = 3;
  const std::vector<double> losses = {3.0, 2.5, 2.6, 2.5, 2.4, 2.4, 2.6, 2.5, 2.0};
  for (std::size_t stop = 1; stop < 8; ++stop) {
    EndsState kept;
    {
      Ends first = of_losses(c);
      for (std::size_t i = 0; i < stop; ++i) first.evaluated(static_cast<std::int64_t>(i + 1), losses[i]);
      kept = first.state();
    }
    Ends second = of_losses(c);
    second.restore(kept, static_cast<std::int64_t>(stop));
    std::size_t i = stop;
    while (!second.over() && i < losses.size()) {
      second.evaluated(static_cast<std::int64_t>(i + 1), losses[i]);
      ++i;
    }
    EXPECT_EQ(i, 8u) << stop;
    EXPECT_EQ(second.state().best_step, 5) << stop;
  }
}

TEST(Ends, ALossThatIsReachedEndsItAndHoldsOnResume) {
  config::Config c;
  c.train.target_loss = 2.5;
  Ends ends = of_losses(c);
  EXPECT_TRUE(ends.evaluated(100, 2.6));
  EXPECT_FALSE(ends.over());
  EXPECT_TRUE(ends.evaluated(200, 2.5));
  EXPECT_TRUE(ends.over());
  EXPECT_TRUE(ends.ending().starts_with("; held-out loss 2.5000 reached train.target_loss = 2.5 after step 200"));

  Ends again = of_losses(c);
  again.restore(ends.state(), 200);
  EXPECT_TRUE(again.over());
  config::Config lower = c;
  lower.train.target_loss = 2.4;
  Ends further = of_losses(lower);
  further.restore(ends.state(), 200);
  EXPECT_FALSE(further.over());
  Ends elsewhere = of_losses(c);  // the losses were those of other data
  elsewhere.losses_are_others();
  elsewhere.restore(ends.state(), 200);
  EXPECT_FALSE(elsewhere.over());
  EXPECT_TRUE(elsewhere.evaluated(300, 2.9));
}

TEST(Ends, WithoutTheKeysNothingEndsAndNothingIsKept) {
  config::Config c;
  Ends ends = of_losses(c);
  EXPECT_FALSE(ends.evaluated(100, 2.0));
  ends.stepped(101);
  EXPECT_FALSE(ends.over());
  EXPECT_EQ(ends.ending(), "");
  EXPECT_EQ(ends.nothing_left(), "");
  EXPECT_EQ(ends.state().best_step, 0);
  EXPECT_EQ(ends.steps(), 1000);
  EXPECT_EQ(ends.seconds_left(), std::nullopt);
}

// The last evaluation and the last save are within the hours, and little of them is left.
TEST(Ends, TheHoursHaveRoomForTheLastEvaluationAndSave) {
  config::Config c = with(0.1);
  c.checkpoint.every = 50;
  const double began = hours_clock;
  TimedSession s(c, 0);
  s.evaluation = 3;
  s.save = 5;
  hours_clock += 20;  // weights were loaded
  s.run_to(kFar);
  EXPECT_TRUE(s.ends->over());
  EXPECT_LE(hours_clock - began, 360);
  EXPECT_GT(hours_clock - began, 360 - (1 + 3 + 5) - 0.1);
  EXPECT_EQ(s.ends->ending(), fmt::format("; train.max_hours = 0.1 are over after step {}", s.step));
  EXPECT_EQ(s.told, std::vector<std::string>{});
}

TEST(Ends, TheHoursAreThoseOfAllSessions) {
  const double began = hours_clock;
  EndsState kept;
  std::int64_t step = 0;
  for (int session = 0; session < 3; ++session) {
    TimedSession s(with(0.1), 0);
    s.resume(kept, step);
    s.run_to(step + 100);
    EXPECT_FALSE(s.ends->over());
    kept = s.ends->state();
    step = s.step;
  }
  EXPECT_NEAR(kept.seconds, 300, 1e-6);
  hours_clock += 5000;  // between two sessions
  TimedSession last(with(0.1), 0);
  last.resume(kept, step);
  last.run_to(kFar);
  EXPECT_NEAR(hours_clock - began - 5000, 360, 1.1);
  TimedSession over(with(0.1), 0);
  over.resume(last.ends->state(), last.step);
  EXPECT_TRUE(over.ends->over());
  EXPECT_EQ(
      over.ends->nothing_left(),
      fmt::format(": train.max_hours = 0.1 are over after step {}; a larger train.max_hours lets it go on", last.step));
  TimedSession more(with(0.2), 0);
  more.resume(last.ends->state(), last.step);
  EXPECT_FALSE(more.ends->over());
  more.run_to(kFar);
  EXPECT_NEAR(hours_clock - began - 5000, 720, 1.1);
}

TEST(Ends, StepsFollowTheHoursOnceTheirSpeedIsKnown) {
  config::Config c = with(1, true);
  c.checkpoint.every = 100;
  c.optim.warmup_steps = 8;
  const double began = hours_clock;
  TimedSession s(c, 0);
  s.evaluation = 2;
  s.save = 4;
  s.run_to(19);
  EXPECT_EQ(s.ends->steps(), Ends::kNoEnd);
  EXPECT_EQ(optim::learning_rate(c, 18, s.ends->steps(), 1), c.optim.lr);
  s.run_to(20);
  ASSERT_EQ(s.told.size(), 1u);
  // No save was seen yet: 1.2 s a step, and 1.24 s in truth.
  EXPECT_NEAR(static_cast<double>(s.ends->steps()), 3600 / 1.2, 60);
  EXPECT_TRUE(
      s.told[0].starts_with("train.max_hours = 1: at 1.2 s a step, evaluations and saves included, there is "
                            "room for 29"))
      << s.told[0];
  s.run_to(kFar);
  EXPECT_EQ(s.told.size(), 2u);  // the saves that it found later, and then no more
  EXPECT_EQ(s.step, s.ends->steps());
  EXPECT_FALSE(s.ends->over());
  EXPECT_EQ(optim::learning_rate(c, s.step - 1, s.ends->steps(), 1), c.optim.min_lr);
  EXPECT_LE(hours_clock - began, 3600);
  EXPECT_GT(hours_clock - began, 0.985 * 3600);
}

// Steps that grow take longer, and are counted so before they are there.
TEST(Ends, StepsOfARampAreCountedAsLongAsTheyWillBe) {
  config::Config c = with(1, true);
  c.train.accumulate = 8;
  c.train.accumulate_from = 1;
  c.train.accumulate_ramp_steps = 500;
  const double began = hours_clock;
  TimedSession s(c, 0);
  while (!s.over()) {
    s.a_step = 0.25 * static_cast<double>(config::micro_batches(c.train, s.step));
    s.make_step();
  }
  const double room = static_cast<double>(config::steps_within(c.train, 4 * 3600));
  EXPECT_EQ(s.told.size(), 1u) << "the first count holds";
  EXPECT_NEAR(static_cast<double>(s.step), room, 0.01 * room);
  EXPECT_FALSE(s.ends->over());
  EXPECT_GT(hours_clock - began, 0.985 * 3600);

  TimedSession later(c, 0);
  EndsState before;
  before.seconds = 0.25 * static_cast<double>(config::micro_batches_before(c.train, 100));
  later.resume(before, 100);
  ASSERT_EQ(later.told.size(), 1u);
  EXPECT_NEAR(static_cast<double>(later.ends->steps()), room, 0.01 * room);
}

// A machine that becomes slower or faster on the way, or is uneven: the end by time cuts no more than a hundredth.
TEST(Ends, StepsAreCountedAgainWhereTheSpeedChanges) {
  for (const double later : {0.7, 0.97, 1.03, 1.5}) {
    for (const double share : {0.2, 0.6}) {
      const double began = hours_clock;
      TimedSession s(with(1, true), 0);
      s.run_to(static_cast<std::int64_t>(share * 3600));
      s.a_step = later;
      s.run_to(kFar);
      EXPECT_GE(static_cast<double>(s.step), 0.99 * static_cast<double>(s.ends->steps())) << later << " " << share;
      EXPECT_LE(hours_clock - began, 3601) << later << " " << share;
      EXPECT_GT(hours_clock - began, 0.97 * 3600) << later << " " << share;
      EXPECT_LE(s.told.size(), 7u);
    }
  }
}

TEST(Ends, StepsThatTakeLongAreCountedAfterATenthOfTheHours) {
  TimedSession s(with(1, true), 0);
  s.a_step = 120;
  s.run_to(kFar);
  EXPECT_EQ(s.told.size(), 1u);
  EXPECT_EQ(s.step, s.ends->steps());
  EXPECT_GE(s.step, 28);
}

TEST(Ends, TheStepsOfTheConfigurationComeFirst) {
  TimedSession s(with(1, true), 400);
  EXPECT_EQ(s.ends->steps(), 400);
  s.run_to(kFar);
  EXPECT_EQ(s.step, 400);
  ASSERT_EQ(s.told.size(), 1u);
  EXPECT_TRUE(s.told[0].ends_with("; the run ends with its 400 steps before")) << s.told[0];
}

// A run that goes on has the steps that it had; with other hours they are counted at once.
TEST(Ends, AResumeKeepsTheStepsUnlessTheHoursChange) {
  TimedSession first(with(1, true), 0);
  first.run_to(900);
  const EndsState kept = first.ends->state();
  EXPECT_EQ(kept.fitted_steps, first.ends->steps());

  TimedSession same(with(1, true), 0);
  same.resume(kept, 900);
  EXPECT_EQ(same.ends->steps(), first.ends->steps());
  EXPECT_TRUE(same.told.empty());
  same.run_to(kFar);
  EXPECT_NEAR(same.ends->state().seconds, 3600, 40);
  EXPECT_EQ(same.step, same.ends->steps());
  EXPECT_EQ(same.ends->nothing_left(), ": train.max_hours = 1 had room for them; a larger one lets it go on");

  TimedSession more(with(2, true), 0);
  more.resume(same.ends->state(), same.step);
  EXPECT_NEAR(static_cast<double>(more.ends->steps()), 7200, 80);
  EXPECT_EQ(more.told.size(), 1u);
  more.run_to(kFar);
  EXPECT_NEAR(more.ends->state().seconds, 7200, 80);
}

// Where a run goes back to an earlier step of its own, the time is spent, and what it learned of its speed stays.
TEST(Ends, GoingBackGivesNoTimeBack) {
  TimedSession s(with(1, true), 0);
  const EndsState early = s.ends->state();
  s.run_to(500);
  const std::int64_t fitted = s.ends->steps();
  s.resume(early, 0);
  EXPECT_NEAR(s.ends->state().seconds, 500, 1e-6);
  EXPECT_EQ(s.ends->steps(), fitted);
}

using Names = std::vector<std::string>;

// Hears the steps: each takes its seconds, and one of them asks the run to stop.
struct StepListener final : Observer {
  double seconds = 0;
  std::int64_t stop_after = -1;
  StopFlag stop = 0;
  void on(const Event& event) override {
    hear(event, [&](const Stepped& e) {
      hours_clock += seconds;
      if (e.step == stop_after) stop = SIGTERM;
    });
  }
};

Ran run_with(StepListener& steps, const config::Config& config, const Path& folder, bool resume = false) {
  device::CpuDevice device(2);
  TrainOptions options = options_for(config, folder, {&steps}, &steps.stop);
  options.hours_clock = clock_of_test;
  return run_on(device, options, config, folder, resume);
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
  EXPECT_TRUE(says(ran.seen.endings[0], {"8 steps", fmt::format("loss {:.4f}", *ran.result.eval_loss), "3 evaluations",
                                         "train.patience", "best checkpoint", "step 2"}));

  const Ran again = run(stuck({"train.patience=3"}), folder, true);
  EXPECT_EQ(again.result.outcome, Outcome::already_finished);
  ASSERT_EQ(again.seen.endings.size(), 1u);
  EXPECT_TRUE(says(again.seen.endings[0], {"nothing is left", "8 steps", "3 evaluations", "larger train.patience"}));

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
    StepListener first, second;
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
  EXPECT_TRUE(says(ran.seen.endings[0], {fmt::format("loss {:.4f}", target), "train.target_loss"}));
}

TEST(EndsOfRuns, TheHoursAreOverBehindAStepWithAnEvaluationAndASave) {
  testing::TempFolder temp;
  const config::Config c =
      tiny_run({"train.max_hours=0.0975", "train.max_steps=30", "train.eval_every=0", "checkpoint.every=0"});
  StepListener whole;
  whole.seconds = 36;  // 351 s have room for nine steps, and the tenth is made when they are over
  const Ran ran = run_with(whole, c, temp.path() / "run");
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.result.steps, 10);
  EXPECT_TRUE(ran.result.eval_loss.has_value());
  EXPECT_EQ(ran.seen.saves, std::vector<std::int64_t>{10});
  EXPECT_TRUE(says(ran.seen.endings[0], {"train.max_hours = 0.0975", "step 10"}));
  StepListener again;
  EXPECT_EQ(run_with(again, c, temp.path() / "run", true).result.outcome, Outcome::already_finished);

  // The hours of a session that was stopped count; those between two sessions do not.
  StepListener first, second;
  first.seconds = second.seconds = 36;
  first.stop_after = 4;
  run_with(first, c, temp.path() / "parts");
  hours_clock += 1e6;
  const Ran rest = run_with(second, c, temp.path() / "parts", true);
  EXPECT_EQ(rest.result.outcome, Outcome::finished);
  EXPECT_EQ(rest.result.steps, 10);
  EXPECT_EQ(tensors(temp.path() / "parts", 10), tensors(temp.path() / "run", 10));
}

TEST(EndsOfRuns, TheScheduleFitsTheHours) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_hours=0.4", "train.fit_hours=true", "train.max_steps=0",
                                     "train.eval_every=0", "checkpoint.every=0", "optim.warmup_steps=4"});
  StepListener steps;
  steps.seconds = 36;
  steps.stop_after = 30;
  const Ran first = run_with(steps, c, temp.path() / "run");
  ASSERT_EQ(first.seen.notes.size(), 1u);
  EXPECT_TRUE(says(first.seen.notes[0], {"at 36 s a step"}));
  for (const StepMetrics& m : first.seen.steps) {  // a tenth of the hours is over after the fifth
    if (m.step > 4 && m.step <= 7) {
      EXPECT_DOUBLE_EQ(m.lr, c.optim.lr) << m.step;
    } else {
      EXPECT_LT(m.lr, c.optim.lr) << m.step;
    }
  }
  const io::Json state =
      io::read_json(real_files(), temp.path() / "run/checkpoints" / io::checkpoint_name(30) / "state.json");
  StepListener others;
  others.seconds = 36;
  const Ran rest = run_with(others, c, temp.path() / "run", true);
  EXPECT_EQ(rest.result.outcome, Outcome::finished);
  EXPECT_EQ(rest.result.steps, state["ends"]["fitted_steps"]);
  EXPECT_GE(rest.result.steps, 39);  // of the 40 that 1440 s have room for
  EXPECT_LE(rest.result.steps, 40);
  EXPECT_EQ(rest.seen.steps.back().lr, c.optim.min_lr);
}

TEST(TotalSteps, IsWhatComesFirst) {
  config::Train t;
  t.batch_size = 2;
  t.seq_len = 100;
  t.accumulate = 3;
  t.max_steps = 10;
  EXPECT_EQ(total_steps(t), 10);
  t.max_tokens = 601;
  EXPECT_EQ(total_steps(t), 2);
  t.max_steps = 0;
  EXPECT_EQ(total_steps(t), 2);
  t.max_steps = 1;
  EXPECT_EQ(total_steps(t), 1);
  t.max_steps = 5;
  t.max_tokens = 0;
  t.epochs = 2.5;
  EXPECT_EQ(total_steps(t, 3.0), 3);  // 7.5 batches, 3 a step
  EXPECT_EQ(total_steps(t, 300.0), 5);
  t.max_steps = 0;
  EXPECT_EQ(total_steps(t, 300.0), 250);
  EXPECT_EQ(total_steps(t, 0.1), 1);
  EXPECT_EQ(total_steps(t), 0);  // not known yet
}

TEST(TotalSteps, CountWithTheRamp) {
  config::Train t;
  t.batch_size = 2;
  t.seq_len = 100;
  t.accumulate = 4;
  t.accumulate_from = 1;
  t.accumulate_ramp_steps = 3;  // 1, 2, 3, 4, 4 ... of 200 tokens
  t.max_tokens = 1200;
  EXPECT_EQ(total_steps(t), 3);
  t.max_tokens = 1201;
  EXPECT_EQ(total_steps(t), 4);
  t.max_tokens = 10'000;
  EXPECT_EQ(total_steps(t), 14);  // 6 + 11 * 4 = 50
  EXPECT_EQ(total_steps(t, {}, 2), 8);
  t.max_tokens = 0;
  t.epochs = 2;
  EXPECT_EQ(total_steps(t, 25), 14);
  EXPECT_EQ(total_steps(t, 26), 15);  // halfway, up
  EXPECT_EQ(total_steps(t, 25.9), 14);
}

// checkpoint.minutes counts from the last save, whichever rule made it.
TEST(SavesByTheClock, StepsOrMinutesWhicheverIsDueFirst) {
  testing::TempFolder temp;
  const auto saves = [&](const char* name, double seconds, std::vector<std::string> more) {
    more.insert(more.begin(), {"train.max_steps=20", "train.eval_every=0", "checkpoint.keep=1"});
    StepListener steps;
    steps.seconds = seconds;
    return run_with(steps, tiny_run(more), temp.path() / name).seen.saves;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(saves("minutes", 60, {"checkpoint.every=0", "checkpoint.minutes=5"}), (Steps{6, 12, 18, 20}));
  EXPECT_EQ(saves("both", 60, {"checkpoint.every=8", "checkpoint.minutes=5"}), (Steps{6, 8, 14, 16, 20}));
  EXPECT_EQ(saves("default", 60, {"checkpoint.every=0"}), (Steps{16, 20}));
  EXPECT_EQ(saves("short", 40, {"checkpoint.every=0"}), (Steps{20}));
  EXPECT_EQ(saves("off", 600, {"checkpoint.every=0", "checkpoint.minutes=0"}), (Steps{20}));
}

}  // namespace
}  // namespace redline::train
