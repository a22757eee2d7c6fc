// A sink that fails costs the run nothing: it is reported, training goes on, and what it missed is there when it works
// again.
#include "report/sinks.h"

#include <gtest/gtest.h>

#include <thread>

#include "io/json.h"
#include "report/prometheus_file.h"
#include "report/rows_file.h"
#include "report/run_record.h"
#include "report/small_run.h"
#include "testing/failing_files.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

namespace redline::report {
namespace {

using testing::says;

using testing::FailingFiles;
using testing::Failure;

struct Heard final : train::Observer {
  std::vector<std::string> all;
  void on(const train::Event& event) override {
    hear(
        event, [&](const train::Note& e) { all.push_back("note " + e.text); },
        [&](const train::Warning& e) { all.push_back("warning " + e.text); },
        [&](const train::Stepped& e) { all.push_back(fmt::format("step {}", e.step)); });
  }
  int count(std::string_view part) const {
    int n = 0;
    for (const std::string& text : all) n += text.find(part) != text.npos;
    return n;
  }
};

// Fails while `fails` is set.
struct Failing final : train::Observer {
  Heard heard;
  bool fails = false;
  void on(const train::Event& event) override {
    if (fails && !std::holds_alternative<train::Evaluating>(event)) fail_machine("a.jsonl: cannot write: no space");
    heard.on(event);
  }
};

train::Event stepped(std::int64_t step) {
  train::StepMetrics m;
  m.step = step;
  return train::Stepped{m};
}

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() {
    relay_.add(failing_, "a.jsonl");
    relay_.add(other_, "the other");
  }
  std::vector<std::string> shown_;
  Relay relay_{{{}, [this](const std::vector<std::string>& names) { shown_ = names; }}};
  Failing failing_;
  Heard other_;
};

TEST_F(RelayTest, WhatASinkMissedComesWhenItWorksAgain) {
  relay_.on(train::Started{});
  relay_.on(stepped(1));
  failing_.fails = true;
  for (std::int64_t step = 2; step <= 4; ++step) relay_.on(stepped(step));
  relay_.on(train::BeforeCheckpoint{});
  EXPECT_EQ(shown_, std::vector<std::string>{"a.jsonl"});
  EXPECT_EQ(other_.count("a.jsonl: cannot write: no space; the run goes on"), 1) << "said once";
  EXPECT_EQ(other_.count("step "), 4);
  failing_.fails = false;
  relay_.on(stepped(5));
  EXPECT_EQ(failing_.heard.count("step "), 1) << "it is tried now and then, not at every step";
  relay_.on(train::BeforeCheckpoint{});
  EXPECT_EQ(other_.count("note a.jsonl can be written again, and has what it missed since step 2"), 1);
  EXPECT_TRUE(shown_.empty());
  relay_.on(stepped(6));
  std::vector<std::string> steps;
  for (const std::string& text : failing_.heard.all)
    if (text.starts_with("step ")) steps.push_back(text);
  EXPECT_EQ(steps, (std::vector<std::string>{"step 1", "step 2", "step 3", "step 4", "step 5", "step 6"}));
  EXPECT_EQ(failing_.heard.count("warning a.jsonl: cannot write"), 1) << "it has its own story too";
}

TEST_F(RelayTest, MemoryIsBoundedAndWhatIsLostIsSaid) {
  relay_.on(train::Started{});
  failing_.fails = true;
  for (std::int64_t step = 1; step <= 30'000; ++step) relay_.on(stepped(step));
  failing_.fails = false;
  relay_.on(train::BeforeCheckpoint{});
  EXPECT_EQ(failing_.heard.count("step "), 19'999 + 1) << "and the warning";
  EXPECT_EQ(other_.count("but not from step 20000 to 30000"), 1);
}

TEST_F(RelayTest, ASinkThatFailsToTheEndIsSaid) {
  relay_.on(train::Started{});
  failing_.fails = true;
  relay_.on(stepped(1));
  relay_.on(train::Finished{"done"});
  EXPECT_EQ(other_.count("warning a.jsonl could not be written to the end"), 1);
}

TEST_F(RelayTest, BeforeTheStartAFailureEndsTheRun) {
  failing_.fails = true;
  EXPECT_THROW(relay_.on(train::Started{}), MachineError);
}

TEST(Relay, LinesOfOtherThreadsReachTheObserversOneAtATime) {
  Heard heard;
  {
    Relay relay;
    relay.add(heard, "heard");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 50; ++i) log::note("line {}", i);
      });
    for (std::thread& t : threads) t.join();
    log::warn("last");
  }
  ASSERT_EQ(heard.all.size(), 201u);
  EXPECT_EQ(heard.all.back(), "warning last");
}

// A run whose logs meet a full disk at a chosen change, which has room again after a chosen step.
struct Interrupted final : train::Observer {
  FailingFiles files;
  std::int64_t fails_at = 0, room_after = 0;
  void on(const train::Event& event) override {
    if (std::holds_alternative<train::Started>(event) && fails_at >= 0) files.fail_at(fails_at, Failure::full_disk);
    if (const auto* m = std::get_if<train::Stepped>(&event); m && m->step == room_after)
      files.fail_at(-1, Failure::once);
  }
};

std::string text(const Path& path) { return real_files().read(path); }

train::TrainResult run_with_logs(const Path& folder, Interrupted& disk) {
  config::Config config = train::tiny_run({"train.max_steps=12", "train.sample_every=4", "train.sample_tokens=4",
                                           "model.layers=1", "log.sinks=[\"jsonl\",\"tensorboard\",\"prometheus\"]"});
  device::CpuDevice device(1);
  Sinks sinks(disk.files, config, folder, "redline", false);
  train::TrainOptions options;
  options.config = config;
  options.folder = folder;
  options.observers = {&sinks.observer(), &disk};
  return train::train(options, device, real_files());
}

// Wherever the disk fills, all steps are made and saved, and the logs have all that they would have had.
TEST(Logs, ADiskThatWasFullForAWhileCostsNothing) {
  const testing::TempFolder folder;
  Interrupted counting;
  counting.fails_at = -1;
  run_with_logs(folder / "whole", counting);
  const std::int64_t changes = counting.files.changes();
  ASSERT_GT(changes, 40);
  for (std::int64_t nth = 0; nth < changes; nth += 7) {
    const Path run = folder / fmt::format("run{}", nth);
    Interrupted disk;
    disk.fails_at = nth;
    disk.room_after = 7;
    const train::TrainResult result = run_with_logs(run, disk);
    EXPECT_EQ(result.outcome, train::Outcome::finished);
    EXPECT_TRUE(real_files().exists(run / "checkpoints/step_00000012/model.safetensors"));
    const std::vector<io::Json> metrics = rows_in(run / "metrics.jsonl"), samples = rows_in(run / "samples.jsonl");
    ASSERT_EQ(metrics.size(), 13u) << "failed at change " << nth;
    for (std::size_t step = 0; step < metrics.size(); ++step) EXPECT_EQ(metrics[step]["step"], step);
    EXPECT_EQ(text(run / "samples.jsonl"), text(folder / "whole/samples.jsonl"));
    std::vector<std::string> kinds;
    for (const io::Json& row : rows_in(run / "events.jsonl"))
      if (row["kind"] == "checkpoint" || row["kind"] == "finished") kinds.push_back(row["kind"]);
    EXPECT_EQ(kinds, (std::vector<std::string>{"checkpoint", "checkpoint", "checkpoint", "finished"}));
    EXPECT_NE(text(run / "metrics.prom").find("redline_step{run=\"" + run.filename().string() + "\"} 12\n"),
              std::string::npos);
    EXPECT_TRUE(read_run(real_files(), run).problems.empty());
  }
}

// A run whose folder was deleted would otherwise write to its end into files that no one sees.
TEST(Logs, AFileThatWasDeletedIsToldAndBegunAnew) {
  const testing::TempFolder folder;
  const Path path = folder / "run/metrics.jsonl";
  RowsFile file = metrics_file(real_files(), path);
  Heard heard;
  Relay relay;
  relay.add(file, "metrics.jsonl");
  relay.add(heard, "heard");
  relay.on(train::Started{});
  relay.on(stepped(1));
  real_files().remove_all(folder / "run");
  relay.on(train::BeforeCheckpoint{});
  EXPECT_EQ(heard.count("metrics.jsonl was deleted or moved under the run"), 1);
  relay.on(stepped(2));
  relay.on(train::BeforeCheckpoint{});
  EXPECT_EQ(heard.count("metrics.jsonl can be written again"), 1);
  relay.on(stepped(3));
  std::vector<std::int64_t> steps;
  for (const io::Json& row : rows_in(path)) steps.push_back(row["step"]);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 3}));
}

TEST(Logs, ADiskThatStaysFullDoesNotEndTheRun) {
  const testing::TempFolder folder;
  Interrupted disk;
  disk.fails_at = 3;
  ::testing::internal::CaptureStderr();
  const train::TrainResult result = run_with_logs(folder / "run", disk);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(result.steps, 12);
  EXPECT_TRUE(real_files().exists(folder / "run/checkpoints/step_00000012/model.safetensors"));
  EXPECT_TRUE(says(said, {"metrics.jsonl: cannot write: no space left on device; the run goes on",
                          "metrics.jsonl could not be written to the end"}));
}

TEST(PrometheusFile, IsReplacedAndSaysHowItStands) {
  const testing::TempFolder folder;
  const Path path = folder / "metrics.prom";
  PrometheusFile file(real_files(), path);
  SmallRun run;
  run.header.folder = "runs/a \"b\"";
  file.on(train::Started{run.header});
  EXPECT_TRUE(says(real_files().read(path), {"redline_running{run=\"a \\\"b\\\"\"} 1\n", "redline_step{"}));
  EXPECT_FALSE(says(real_files().read(path), "redline_loss{")) << "no step is done yet";
  train::StepMetrics m;
  m.step = 7;
  m.loss = NAN;
  m.mfu = 0.5;
  m.mfu_palm = 0.625;
  m.gpu = device::GpuSample{};
  m.gpu->power_w = 300;
  file.on(train::Stepped{m});
  file.on(train::Warning{"x"});
  file.on(train::Finished{"done"});
  const std::string text = real_files().read(path);
  for (const char* line :
       {"redline_running{run=\"a \\\"b\\\"\"} 0\n", "redline_step{run=\"a \\\"b\\\"\"} 7\n", "} NaN\n",
        "redline_mfu_ratio{run=\"a \\\"b\\\"\"} 0.5\n", "redline_mfu_palm_ratio{run=\"a \\\"b\\\"\"} 0.625\n",
        "# TYPE redline_warnings_total counter\n", "redline_warnings_total{run=\"a \\\"b\\\"\"} 1\n",
        "redline_gpu_power_watts"})
    EXPECT_TRUE(says(text, line));
  EXPECT_FALSE(says(text, "redline_gpu_temperature")) << "what the card does not tell is left out";
  EXPECT_EQ(real_files().list(folder.path()), std::vector<std::string>{"metrics.prom"});
}

}  // namespace
}  // namespace redline::report
