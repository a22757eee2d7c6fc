// What a run promises: it learns, it repeats to the bit, it stops when asked or when numbers break, and it never writes
// over another.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <thread>

#include "base/log.h"
#include "io/json.h"
#include "io/new_folder.h"
#include "testing/temp_folder.h"
#include "testing/without_rights.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "train/tiny_run.h"

namespace redline::train {
namespace {

TEST(Trainer, LearnsEvaluatesAndSavesWhenAsked) {
  testing::TempFolder temp;
  const Ran ran = run(tiny_run(), temp.path() / "run");
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  ASSERT_EQ(ran.seen.steps.size(), 40u);
  EXPECT_EQ(ran.seen.evaluations.size(), 5u);  // before the first step, and after 10, 20, 30, 40
  EXPECT_LT(ran.seen.evaluations.back(), ran.seen.evaluations.front() - 1.0);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{5, 10, 15, 20, 25, 30, 35, 40}));
  EXPECT_EQ(io::list_checkpoints(real_files(), temp.path() / "run/checkpoints").size(), 2u);
  for (const StepMetrics& m : ran.seen.steps) {
    EXPECT_EQ(m.eval_loss.has_value(), m.step % 10 == 0);
    EXPECT_GT(m.tokens, 0);
    EXPECT_LE(m.tokens, 2 * 2 * 64);
    EXPECT_GE(m.padding, 0.0);
    EXPECT_LT(m.padding, 0.5);
    EXPECT_GT(m.mfu, 0.0);
    EXPECT_GE(m.mfu_palm, m.mfu);
    EXPECT_NEAR(m.mfu, m.tflops * 1e12 / 1e11, 1e-9);
  }
  EXPECT_EQ(ran.seen.steps.back().lr, tiny_run().optim.min_lr);
}

TEST(Trainer, TheSameRunTwiceGivesTheSameBits) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=12"});
  const Ran a = run(c, temp.path() / "a"), b = run(c, temp.path() / "b");
  EXPECT_EQ(losses(a.seen), losses(b.seen));
  EXPECT_EQ(tensors(temp.path() / "a", 12), tensors(temp.path() / "b", 12));
  const Ran other = run(tiny_run({"train.max_steps=12", "train.seed=1"}), temp.path() / "c");
  EXPECT_NE(losses(a.seen), losses(other.seen));
}

TEST(Trainer, AStopFinishesTheStepSavesAndResumesToTheSameBits) {
  testing::TempFolder temp;
  expect_the_same_in_parts(tiny_run({"train.max_steps=11"}), temp.path());
}

TEST(Trainer, MuonLearnsAndGoesOnToTheSameBits) {
  for (const char* beta2 : {"optim.muon_beta2=0", "optim.muon_beta2=0.9"}) {
    testing::TempFolder temp;
    const std::vector<double> all =
        losses(expect_the_same_in_parts(
                   tiny_run({"train.max_steps=6", "optim.name=muon", beta2, "optim.cautious_decay=true"}), temp.path())
                   .seen);
    EXPECT_LT(all.back(), all.front() - 0.5);
  }
}

// Two micro-steps and an update a step; a device that runs ahead has tried both kinds of batches before.
template <class D>
void expect_dropped_in_step_7() {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=11", "checkpoint.every=0"});
  const Ran whole = run(c, temp.path() / "whole");
  for (const int asked_at : {1, 2, 3}) {
    const Path folder = temp.path() / std::to_string(asked_at);
    D device(2);
    StopFlag stop = 0, drop = 0;
    device.given = [&](int n) {
      if (n == (device.runs_ahead() ? 2 : 0) + 6 * 3 + asked_at) stop = drop = SIGTERM;
    };
    TrainOptions options;
    options.stop = &stop;
    options.drop = &drop;
    const Ran part = run_on(device, options, c, folder, false, real_files());
    const std::int64_t done = asked_at < 3 ? 6 : 7;  // an update is never dropped
    EXPECT_EQ(part.result.outcome, Outcome::stopped);
    EXPECT_EQ(part.result.steps, done);
    EXPECT_EQ(part.seen.steps.size(), static_cast<std::size_t>(done));
    EXPECT_EQ(part.seen.saves, std::vector<std::int64_t>{done});
    ASSERT_EQ(part.seen.endings.size(), 1u);
    EXPECT_TRUE(says(part.seen.endings[0], {"signal 15", fmt::format("after step {}", done), "--resume"}));
    EXPECT_EQ(any_has(part.seen.endings, "step 7 was left unfinished"), done == 6);
    const Ran rest = run(c, folder, true);
    std::vector<double> seen = losses(part.seen);
    const std::vector<double> later = losses(rest.seen);
    seen.insert(seen.end(), later.begin(), later.end());
    EXPECT_EQ(seen, losses(whole.seen));
    EXPECT_EQ(tensors(temp.path() / "whole", 11), tensors(folder, 11));
  }
}
TEST(Trainer, ADroppedStepIsAsIfItHadNeverBegun) { expect_dropped_in_step_7<testing::WatchedDevice>(); }
TEST(Trainer, ADroppedStepIsAsIfItHadNeverBegunOnADeviceThatRunsAhead) {
  expect_dropped_in_step_7<testing::AheadDevice>();
}

// Also of the last one, which the run ends with, and the first one, before any step.
TEST(Trainer, AStopLeavesAnEvaluation) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"train.max_steps=20", "checkpoint.every=0"});
  for (const std::size_t evaluations : {0u, 1u, 2u}) {
    StopFlag stop = 0;
    std::size_t left = evaluations;
    Hears stopper([&](const Evaluated&) { --left; },
                  [&](const Evaluating&) {
                    if (left == 0) stop = SIGINT;
                  });
    device::CpuDevice device(2);
    const auto& [result, seen] =
        run_on(device, options_for({}, {}, {&stopper}, &stop), c, temp.path() / std::to_string(evaluations));
    EXPECT_EQ(result.outcome, Outcome::stopped);
    EXPECT_EQ(result.steps, static_cast<std::int64_t>(10 * evaluations));
    EXPECT_EQ(seen.evaluations.size(), evaluations);
    EXPECT_EQ(seen.saves.size(), evaluations > 0 ? 1u : 0u);
    EXPECT_EQ(seen.endings.size(), 1u);
    const char* const where[] = {"before the first step", "after step 10", "after step 20, the last"};
    EXPECT_TRUE(says(seen.endings[0], {"signal 2", where[evaluations], evaluations < 2 ? "--resume" : "redline eval"}));
  }
}

TEST(Trainer, TellsOfTheDataPipelineWhereAsked) {
  testing::TempFolder temp;
  const Ran quiet = run(tiny_run({"train.max_steps=3"}), temp.path() / "quiet");
  EXPECT_TRUE(quiet.seen.pipelines.empty());
  const Ran ran = run(tiny_run({"train.max_steps=3", "data.debug=true"}), temp.path() / "run");
  ASSERT_FALSE(ran.seen.pipelines.empty());
  EXPECT_FALSE(ran.seen.pipelines.back().slowest.empty());
}

TEST(Trainer, AFolderThatHoldsARunIsNeverOverwritten) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=2"}), temp.path());
  EXPECT_TRUE(says(error_of([&] { run(tiny_run({"train.max_steps=2"}), temp.path()); }), {"--resume"}));
  const std::string other = error_of([&] { run(tiny_run({"model.ffn=64"}), temp.path(), true); });
  EXPECT_TRUE(says(other, {"model.ffn"}));
  const Ran longer = run(tiny_run({"train.max_steps=4"}), temp.path(), true);  // the user's choice, and said
  EXPECT_EQ(longer.result.steps, 4);
  EXPECT_TRUE(any_has(longer.seen.notes, "train.max_steps"));
}

TEST(Trainer, AFolderThatAnotherProcessTrainsIntoIsRefused) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run";
  run(tiny_run({"train.max_steps=2"}), folder);
  const std::string before = real_files().read(folder / "config.toml");
  {
    const io::FileLock other(folder / ".lock", io::FileLock::IfBusy::leave);
    const std::string message = error_of([&] { run(tiny_run({"train.max_steps=4"}), folder, true); });
    EXPECT_TRUE(says(message, {"another process is training into this folder"}));
    EXPECT_EQ(real_files().read(folder / "config.toml"), before);
  }
  run(tiny_run({"train.max_steps=4"}), folder, true);
}

// Somebody else's lock, which may be read but not written, keeps a run out as well; one that may not even be read is
// told.
TEST(Trainer, ALockOfAnotherUserHoldsToo) {
  namespace fs = std::filesystem;
  testing::TempFolder temp;
  fs::permissions(temp.path(), fs::perms::all);
  const auto locked = [&] { return io::FileLock(temp / ".lock", io::FileLock::IfBusy::leave).why_not(); };
  const io::FileLock theirs(temp / ".lock", io::FileLock::IfBusy::leave);
  {
    const testing::WithoutRights rights(temp / ".lock",
                                        fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read);
    EXPECT_EQ(locked(), EWOULDBLOCK);
  }
  {
    const testing::WithoutRights rights(temp / ".lock");
    EXPECT_EQ(locked(), EACCES);
  }
}

TEST(Trainer, ADryRunWritesNothing) {
  testing::TempFolder temp;
  device::CpuDevice device(1);
  TrainOptions options = options_for(tiny_run(), temp.path() / "dry");
  options.dry_run = true;
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::dry_run);
  EXPECT_FALSE(real_files().exists(options.folder));
}

// A rate so high that the first update throws the parameters out of fp32's range within a few steps.
const std::vector<std::string> kBroken = {"optim.lr=1e30",        "optim.min_lr=1e30", "optim.schedule=constant",
                                          "optim.warmup_steps=0", "optim.clip=0",      "train.eval_every=0"};

TEST(Trainer, ALossThatIsNotFiniteStopsTheRunAndTouchesNothing) {
  testing::TempFolder temp;
  run(tiny_run({"train.max_steps=5"}), temp.path());
  const std::string before = tensors(temp.path(), 5);
  std::vector<std::string> overrides = kBroken;
  overrides.push_back("train.max_steps=40");
  std::string message;
  try {
    run(tiny_run(overrides), temp.path(), true);
  } catch (const NotFinite& e) {
    message = e.what();
  }
  ASSERT_NE(message, "");
  EXPECT_TRUE(says(message, {"step ", "documents ", "optim.lr"}));
  EXPECT_EQ(tensors(temp.path(), 5), before);
  // The way out that the message names: a lower rate, from the same checkpoint.
  EXPECT_EQ(run(tiny_run({"train.max_steps=8"}), temp.path(), true).result.steps, 8);
}

TEST(Trainer, ParametersThatAreNotFiniteAreNeverSaved) {
  testing::TempFolder temp;
  std::vector<std::string> overrides = kBroken;
  overrides.insert(overrides.end(), {"checkpoint.every=1", "optim.lr=1e300", "optim.min_lr=1e300"});
  EXPECT_THROW(run(tiny_run(overrides), temp.path()), NotFinite);
  EXPECT_TRUE(io::list_checkpoints(real_files(), temp.path() / "checkpoints").empty());
}

// After hours of steps is too late.
TEST(Trainer, CheckpointsThatMayNotBeWrittenAreToldBeforeTheFirstStep) {
  testing::TempFolder temp;
  const Path folder = temp.path() / "run", checkpoints = folder / "checkpoints";
  real_files().create_folders(checkpoints);
  for (const Path& open : {temp.path(), folder}) std::filesystem::permissions(open, std::filesystem::perms::all);
  Recorder seen;
  const TrainOptions options = options_for(tiny_run({"train.max_steps=2"}), folder, {&seen});
  {
    const testing::WithoutRights rights(checkpoints, std::filesystem::perms(0555));
    device::CpuDevice device(1);
    const std::string message = error_of([&] { train(options, device, real_files()); });
    EXPECT_TRUE(says(message, {"give this user the right to write there"}));
  }
  EXPECT_TRUE(seen.steps.empty());
  EXPECT_EQ(run(options.config, folder, true).result.steps, 2);
}

TEST(Trainer, ADryRunOfAModelThatDoesNotFitShowsItsMemoryAndWarns) {
  testing::TempFolder temp;
  struct Sized final : device::CpuDevice {  // what others leave of the machine's memory changes
    using CpuDevice::CpuDevice;
    std::int64_t memory_bytes() const override { return std::int64_t{32} << 30; }
    std::int64_t available_bytes() const override { return std::int64_t{32} << 30; }
  } device(1);
  std::int64_t total = 0;
  std::string warned;
  Hears header([&](const Started& e) { total = e.memory->device.total; }, [&](const Warning& e) { warned += e.text; });
  TrainOptions options = options_for(
      config::load({.file = "", .preset = "llama-1.36b", .overrides = {"train.batch_size=4096", "data.train=ping"}}),
      temp.path() / "large", {&header});
  options.dry_run = true;
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::dry_run);
  EXPECT_GT(total, device.memory_bytes());
  options.dry_run = false;
  const std::string message = error_of([&] { train(options, device, real_files()); });
  EXPECT_TRUE(says(message, {"train.batch_size"}));
  EXPECT_TRUE(message.starts_with("the run needs ")) << message;
  EXPECT_EQ(warned, message);
  EXPECT_FALSE(real_files().exists(options.folder));
}

TEST(Trainer, AVocabularySmallerThanTheDatasIsRefused) {
  testing::TempFolder temp;
  const std::string message = error_of([&] { run(tiny_run({"model.vocab=200"}), temp.path()); });
  EXPECT_TRUE(says(message, {"model.vocab is 200", "267"}));
}

TEST(Trainer, EpochsEndARunAndAreToldOnTheWay) {
  testing::TempFolder temp;
  const Ran ran = run(tiny_run({"data.documents=40", "train.max_steps=0", "train.epochs=2"}), temp.path() / "run");
  ASSERT_GT(ran.seen.steps.size(), 20u);
  const double a_step = 2.0 / static_cast<double>(ran.seen.steps.size());
  double before = 0;
  for (const StepMetrics& m : ran.seen.steps) {
    ASSERT_TRUE(m.epoch.has_value());
    EXPECT_GE(*m.epoch, before);
    before = *m.epoch;
  }
  EXPECT_NEAR(before, 2, 2 * a_step);
  EXPECT_EQ(ran.seen.steps.back().lr, tiny_run().optim.min_lr);  // the schedule knew
  EXPECT_TRUE(ran.seen.warnings.empty());
}

TEST(Trainer, ReadingTheDataASecondTimeIsToldOnce) {
  testing::TempFolder temp;
  const config::Config c = tiny_run({"data.documents=10", "train.max_steps=12"});
  const Ran ran = run(c, temp.path() / "run");
  ASSERT_GT(*ran.seen.steps.back().epoch, 1.2);
  ASSERT_EQ(ran.seen.warnings.size(), 1u);
  EXPECT_TRUE(says(ran.seen.warnings[0], {"a second time"}));
  const Ran endless = run(tiny_run({"train.max_steps=3"}), temp.path() / "endless");
  EXPECT_TRUE(endless.seen.warnings.empty());
  EXPECT_FALSE(endless.seen.steps.back().epoch.has_value());
}

TEST(Trainer, EpochsOfDataWithoutAnEndAreRefused) {
  testing::TempFolder temp;
  const std::string endless = error_of([&] {
    run(tiny_run({"train.max_steps=0", "train.epochs=2"}), temp.path() / "endless");
  });
  EXPECT_TRUE(says(endless, {"train.epochs (2)", "has no end", "train.max_steps"}));
}

TEST(Trainer, DataThatNobodyNamedAreAskedFor) {
  testing::TempFolder temp;
  config::Config c = tiny_run();
  c.data.train.clear();
  EXPECT_TRUE(says(error_of([&] { run(c, temp.path() / "run"); }), {"data.train"}));
  EXPECT_FALSE(real_files().exists(temp.path() / "run"));
}

// Lines that are tokenized while training do not tell their length: train.epochs has them counted first.
struct CountedLines {
  testing::TempFolder temp;
  CountedLines() { write(300); }
  void write(int documents) {
    std::string lines;
    for (int i = 0; i < documents; ++i)
      lines += fmt::format("{{\"text\": \"line {} {}\"}}\n", i, std::string(i % 150, 'x'));
    real_files().replace(temp.path() / "a.jsonl", lines);
  }
  config::Config config(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train.max_steps=0", "train.epochs=2", "data.tokenizer=bytes", "train.eval_every=0",
                               "data.shuffle_buffer=32", "data.train=" + (temp.path() / "a.jsonl").string()});
    return tiny_run(more);
  }
};

TEST(Trainer, EpochsOfAStreamAreCountedAndEndTheRun) {
  const CountedLines lines;
  std::int64_t steps = 0, documents = 0, counted = 0;
  Hears header([&](const Started& e) { steps = e.steps, documents = e.training_data->documents; },
               [&](const Counting&) { ++counted; });
  testing::WatchedDevice device(2);
  TrainOptions options;
  options.observers = {&header};
  const Path folder = lines.temp.path() / "run";
  const Ran ran = run_on(device, options, lines.config(), folder);
  EXPECT_EQ(documents, 296);  // the last of every 64 is held out
  EXPECT_EQ(static_cast<std::int64_t>(ran.seen.steps.size()), steps);
  ASSERT_GT(steps, 20);
  ASSERT_TRUE(ran.seen.steps.back().epoch);
  EXPECT_NEAR(*ran.seen.steps.back().epoch, 2, 0.15);            // by the window
  EXPECT_EQ(ran.seen.steps.back().lr, tiny_run().optim.min_lr);  // the schedule knew
  EXPECT_TRUE(any_has(ran.seen.notes, {"train.epochs", "296 documents"}));
  EXPECT_TRUE(ran.seen.warnings.empty());

  // A resume reads its own count, to the bit; without it the data are counted again, and say the same.
  const auto again = [&](const Path& run_folder, bool removed) {
    if (removed) std::filesystem::remove(run_folder / kEpochFile);
    const Ran rest = go_on(lines.config(), run_folder);
    EXPECT_EQ(any_has(rest.seen.notes, "was read once to count it"), removed);
    EXPECT_EQ(rest.result.steps, steps);
    EXPECT_TRUE(tensors(run_folder, steps) == tensors(folder, steps));
  };
  for (const bool removed : {false, true}) {
    const Path parts = lines.temp.path() / (removed ? "counted" : "kept");
    run(lines.config(), parts, false, real_files(), true);  // a step
    again(parts, removed);
  }
}

TEST(Trainer, OtherDataAreCountedAnew) {
  CountedLines lines;
  const Path folder = lines.temp.path() / "run";
  run(lines.config(), folder, false, real_files(), true);
  const std::string before = real_files().read(folder / kEpochFile);
  lines.write(600);
  const Ran rest = go_on(lines.config(), folder, true);
  EXPECT_TRUE(any_has(rest.seen.notes, "was read once to count it"));
  EXPECT_NE(real_files().read(folder / kEpochFile), before);
}

TEST(Trainer, ASignalEndsTheCountAndLeavesNothing) {
  CountedLines lines;
  lines.write(20'000);
  StopFlag stop = SIGTERM;
  TrainOptions options = options_for(lines.config(), lines.temp.path() / "run", {}, &stop);
  testing::WatchedDevice device(2);
  EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::stopped);
  EXPECT_FALSE(real_files().exists(options.folder));
}

// As on a terminal, whatever the test's own process was started to ignore: shells let background jobs ignore
// SIGINT.
class StopSignalsTest : public ::testing::Test {
 protected:
  StopSignalsTest() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) before_[i] = std::signal(kSignals[i], SIG_DFL);
  }
  ~StopSignalsTest() override {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) std::signal(kSignals[i], before_[i]);
  }
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

 private:
  void (*before_[std::size(kSignals)])(int);
};

// `timeout` sends a signal twice, and means one.
TEST_F(StopSignalsTest, TheFirstIsCaughtAndALaterOneEndsTheProcess) {
  StopSignals signals;
  EXPECT_EQ(signals.caught(), 0);
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.caught(), SIGTERM);
  const auto later = [] {
    StopSignals again;
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    std::raise(SIGTERM);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(later(), ::testing::KilledBySignal(SIGTERM), "");
}

// Ctrl-C lets the step end, and again drops it; whoever sends other signals does not wait that long.
TEST_F(StopSignalsTest, DropsWhereAskedToAndThenEndsTheProcess) {
  const auto later = [] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); };
  for (const int number : kSignals) {
    StopSignals signals(StopSignals::Asked::to_stop_then_to_drop);
    std::raise(number);
    std::raise(number);
    EXPECT_EQ(signals.caught(), number);
    EXPECT_EQ(signals.drop(), number == SIGINT ? 0 : number);
  }
  const auto thrice = [&] {
    StopSignals signals(StopSignals::Asked::to_stop_then_to_drop);
    std::raise(SIGINT);
    later();
    std::raise(SIGINT);
    if (signals.drop() != SIGINT) std::_Exit(1);
    later();
    std::raise(SIGINT);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(thrice(), ::testing::KilledBySignal(SIGINT), "stopping after this step; again: at once\nstopping: ");
  std::signal(SIGHUP, SIG_IGN);  // nohup
  StopSignals signals(StopSignals::Asked::to_stop_then_to_drop);
  std::raise(SIGHUP);
  EXPECT_EQ(signals.caught(), 0);
}

}  // namespace
}  // namespace redline::train
