// Checkpoints are written while training goes on: it waits for none of them but the last, a save that fails costs no
// step, and what is saved are the bits of the step at which the save was due.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "testing/failing_files.h"
#include "testing/temp_folder.h"
#include "testing/transfer_windows.h"
#include "train/run_here.h"

namespace redline::train {
namespace {

config::Config saving_run(std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"train.max_steps=12", "checkpoint.every=4", "checkpoint.keep=9",
                                       "train.eval_every=0", "log.sinks=[]"});
  return tiny_run(overrides);
}

bool is_weights(const Path& path) { return path.filename() == "model.safetensors"; }

// The disk takes until two more steps were told: nothing but a thread beside the steps can wait for that.
TEST(Saving, GoesOnBesideTheSteps) {
  testing::TempFolder temp;
  struct Counting final : Observer {
    std::atomic<int> steps = 0;
    std::vector<Saved> saves;
    void on(const Event& event) override {
      hear(
          event, [&](const Stepped&) { ++steps; }, [&](const Saved& e) { saves.push_back(e); });
    }
  } seen;
  testing::FailingFiles files;
  std::atomic<bool> waits = true;
  files.before_change = [&](const Path& path) {
    if (!is_weights(path) || !waits.exchange(false)) return;
    for (int i = 0; i < 2000 && seen.steps < 6; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(seen.steps, 6) << "training stood still";
  };
  TrainOptions options;
  options.config = saving_run();
  options.folder = temp.path() / "slow";
  options.peak_flops = 1e11;
  options.observers = {&seen};
  device::CpuDevice device(2);
  EXPECT_EQ(train(options, device, files).outcome, Outcome::finished);
  ASSERT_EQ(seen.saves.size(), 3u);
  EXPECT_EQ(seen.saves[0].step, 4);
  EXPECT_LT(seen.saves[0].held, seen.saves[0].seconds);

  // The same bits as those of a disk that was never slow.
  run(saving_run(), temp.path() / "fast");
  for (const std::int64_t step : {4, 8, 12})
    EXPECT_EQ(tensors(temp.path() / "slow", step), tensors(temp.path() / "fast", step)) << step;
}

TEST(Saving, IsTheSameWhereverTheSnapshotLies) {
  testing::TempFolder temp;
  run(saving_run(), temp.path() / "host");
  for (const bool host_has_room : {true, false}) {
    testing::LateDevice device(2);
    const Path folder = temp.path() / (host_has_room ? "late" : "none");
    device.host_has_room = host_has_room;
    Recorder seen;
    TrainOptions options;
    options.config = saving_run();
    options.folder = folder;
    options.peak_flops = 1e11;
    struct NoRoom final : Observer {  // from the first step on, when the run itself has its memory
      testing::LateDevice& device;
      explicit NoRoom(testing::LateDevice& d) : device(d) {}
      void on(const Event& event) override {
        hear(event, [&](const Stepped&) { device.has_room = false; });
      }
    } no_room(device);
    options.observers = {&seen, &no_room};
    EXPECT_EQ(train(options, device, real_files()).outcome, Outcome::finished);
    EXPECT_EQ(any_has(seen.warnings, "training stands still while checkpoints are written"), !host_has_room);
    for (const std::int64_t step : {4, 8, 12})
      EXPECT_EQ(tensors(folder, step), tensors(temp.path() / "host", step)) << step;
  }
}

// The copy's memory is there behind the first step, and its first touch is time of the start.
TEST(Saving, FindsItsMemoryTouched) {
  testing::TempFolder temp;
  struct SlowAtFirst final : device::CpuDevice {
    using CpuDevice::CpuDevice;
    void copy_within(void* to, const void* from, std::int64_t bytes) override {
      if (!std::exchange(touched, true)) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      CpuDevice::copy_within(to, from, bytes);
    }
    bool touched = false;
  } device(2);
  struct Watching final : Observer {
    SlowAtFirst& device;
    std::vector<bool> touched;
    std::vector<std::int64_t> held;
    Account account;
    explicit Watching(SlowAtFirst& d) : device(d) {}
    void on(const Event& event) override {
      hear(
          event,
          [&](const Stepped&) {
            touched.push_back(device.touched);
            held.push_back(device.allocated_bytes());
          },
          [&](const Finished& e) { account = e.account.value(); });
    }
  } seen(device);
  TrainOptions options;
  options.observers = {&seen};
  run_on(device, options, saving_run(), temp.path() / "a", false, real_files());
  ASSERT_EQ(seen.held.size(), 12u);
  EXPECT_FALSE(seen.touched[0]);
  EXPECT_TRUE(seen.touched[1]) << "long before the first save, at step 4";
  EXPECT_LT(seen.held[0], seen.held[1]);
  EXPECT_EQ(seen.held[1], seen.held[11]);
  EXPECT_GE(seen.account.of(Part::start_up), 0.2);
}

TEST(Saving, WaitsForTheSaveBeforeAndSaysSo) {
  testing::TempFolder temp;
  struct Counting final : Observer {
    std::atomic<int> steps = 0;
    void on(const Event& event) override {
      hear(event, [&](const Stepped&) { ++steps; });
    }
  } seen;
  testing::FailingFiles files;
  std::atomic<bool> slow = true;
  files.before_change = [&](const Path& path) {  // until training has begun to wait, and then some
    if (!is_weights(path) || !slow.exchange(false)) return;
    for (int i = 0; i < 2000 && seen.steps < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  };
  device::CpuDevice device(2);
  TrainOptions options;
  options.observers = {&seen};
  const Ran ran =
      run_on(device, options, saving_run({"checkpoint.every=1", "train.max_steps=4"}), temp.path() / "a", false, files);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{1, 2, 3, 4}));
  ASSERT_FALSE(ran.seen.slow_disks.empty());
  EXPECT_TRUE(ran.seen.slow_disks[0].starts_with("the checkpoint of step 1 was still being written"));
}

// The second of three checkpoints meets a full disk, on which there is room again later.
TEST(Saving, ThatFailsIsToldAndTriedAgainAtTheNext) {
  testing::TempFolder temp;
  testing::FailingFiles files;
  std::atomic<int> saves = 0;
  files.before_change = [&](const Path& path) {
    if (path.string().ends_with("step_00000008.partial") && saves++ == 0) files.fail_at(1, testing::Failure::once);
  };
  const Ran ran = run(saving_run(), temp.path() / "a", false, files);
  EXPECT_EQ(ran.result.outcome, Outcome::finished);
  EXPECT_EQ(ran.seen.steps.size(), 12u);
  EXPECT_EQ(ran.seen.saves, (std::vector<std::int64_t>{4, 12}));
  EXPECT_TRUE(any_has(ran.seen.warnings, "the checkpoint of step 8 was not written: "));
  EXPECT_TRUE(any_has(ran.seen.warnings, "Training goes on"));
}

// From step 8 on the disk is full: the run is told so by its last checkpoint, or by that of step 8 where that was asked
// for, which training learns of when the next one is due at the latest.
TEST(Saving, ThatFailsAtTheEndOrWhereAskedEndsTheRun) {
  for (const bool stop : {false, true}) {
    testing::TempFolder temp;
    testing::FailingFiles files;
    std::atomic<int> saves = 0;
    files.before_change = [&](const Path& path) {
      if (path.string().ends_with("step_00000008.partial") && saves++ == 0)
        files.fail_at(1, testing::Failure::full_disk);
    };
    Recorder seen;
    TrainOptions options;
    options.config =
        saving_run({"train.max_steps=16", stop ? "checkpoint.on_error=stop" : "checkpoint.on_error=continue"});
    options.folder = temp.path() / "a";
    options.peak_flops = 1e11;
    options.observers = {&seen};
    device::CpuDevice device(2);
    const std::string message = error_of([&] { train(options, device, files); });
    EXPECT_NE(message.find("delete what is not needed there"), std::string::npos) << message;
    EXPECT_EQ(seen.saves, std::vector<std::int64_t>{4});
    EXPECT_EQ(seen.steps.size() < 16, stop) << seen.steps.size();
    const Ran resumed = run(options.config, options.folder, true);
    EXPECT_EQ(resumed.result.steps, 16);
    run(saving_run({"train.max_steps=16"}), temp.path() / "whole");
    EXPECT_EQ(tensors(options.folder, 16), tensors(temp.path() / "whole", 16));
  }
}

// A signal comes while a save is under way: that one ends whole, and the state of the stop is saved behind it.
TEST(Saving, AStopWaitsForTheSaveUnderWayAndMakesTheLast) {
  testing::TempFolder temp;
  StopFlag stop = 0;
  testing::FailingFiles files;
  files.before_change = [&](const Path& path) {
    if (!is_weights(path) || stop != 0) return;
    stop = SIGTERM;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  };
  device::CpuDevice device(2);
  TrainOptions options;
  options.stop = &stop;
  const Ran ran = run_on(device, options, saving_run(), temp.path() / "a", false, files);
  EXPECT_EQ(ran.result.outcome, Outcome::stopped);
  ASSERT_GE(ran.seen.saves.size(), 1u);
  EXPECT_EQ(ran.seen.saves.front(), 4);
  EXPECT_EQ(ran.seen.saves.back(), ran.result.steps);
  const Ran resumed = run(saving_run(), temp.path() / "a", true);
  run(saving_run(), temp.path() / "whole");
  EXPECT_EQ(tensors(temp.path() / "a", 12), tensors(temp.path() / "whole", 12));
}

}  // namespace
}  // namespace redline::train
