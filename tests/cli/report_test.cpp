// `redline report` as a user runs it: a page, figures, and a sentence for whatever is broken.
#include "cli/program.h"
#include "io/json.h"
#include "report/metrics.h"
#include "testing/page_data.h"

namespace redline::cli {
namespace {

class ReportTest : public ProgramTest {
 protected:
  const Words tiny_ = {"model.layers=1",      "model.hidden=16",    "model.heads=2",      "model.head_dim=8",
                       "model.ffn=16",        "train.batch_size=1", "train.seq_len=32",   "train.eval_batches=1",
                       "train.eval_every=10", "train.max_steps=30", "checkpoint.every=10"};
  void train(const std::string& name, const Words& more = {}) {
    must(Words{"train", "--device", "cpu", "--out", name} + tiny_ + more);
  }
  std::string text(const std::string& name) { return real_files().read(folder_ / name); }
  io::Json data(const std::string& page) { return testing::page_data(text(page)); }
};

TEST_F(ReportTest, OneRunAndTwo) {
  train("a");
  train("b", {"optim.lr=1e-4", "log.sinks=console,jsonl,prometheus"});
  EXPECT_TRUE(exists("b/metrics.prom"));
  for (const std::string& name : real_files().list(folder_ / "b")) EXPECT_FALSE(name.starts_with("events.out")) << name;
  Ran ran = run({"report", "a"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, "a: finished after 30 steps"));
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(data("a/report.html")["runs"][0]["held_out"]["step"], io::Json({0, 10, 20, 30}));
  EXPECT_EQ(run({"report", "a"}).status, 0) << "again, over the page of before";
  ran = run({"report", "a", "b", "--out", "both.html"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const io::Json runs = data("both.html")["runs"];
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_NE(runs[0]["settings"]["optim.lr"], runs[1]["settings"]["optim.lr"]);
  expect_bad_input({"report", "a", "--out", "a/metrics.jsonl"},
                   {"--out a/metrics.jsonl", "no page that redline wrote"});
}

TEST_F(ReportTest, FiguresAsJson) {
  train("a");
  const Ran ran = must({"report", "a", "--json", "--tokens", "1e9"});
  EXPECT_FALSE(exists("a/report.html"));
  const io::Json json = io::parse_json(ran.out, "stdout")["runs"][0];
  EXPECT_EQ(json["steps"], 30);
  EXPECT_EQ(json["state"], "finished");
  for (const char* key : {"mean_mfu", "peak_mfu", "mean_tokens_per_s", "peak_tokens_per_s", "memory_gib"})
    EXPECT_GT(json[key].get<double>(), 0) << key;
  EXPECT_LE(json["mean_mfu"], json["peak_mfu"]);
  ASSERT_EQ(json["extrapolation"].size(), 1u);
  EXPECT_NEAR(json["extrapolation"][0]["hours"].get<double>(), 1e9 / json["pace_tokens_per_s"].get<double>() / 3600,
              1e-6 * json["extrapolation"][0]["hours"].get<double>());
}

TEST_F(ReportTest, AResumedRunTellsOfBothSessions) {
  train("a", {"train.max_steps=20"});
  train("a", {"--resume"});
  const std::string events = text("a/events.jsonl");
  EXPECT_TRUE(says(events, {"\"first_step\":20", "\"card\":false"}));
  must({"report", "a"});
  EXPECT_EQ(data("a/report.html")["runs"][0]["resumes"]["step"], io::Json({20}));
}

TEST_F(ReportTest, ARunThatFailedSaysWhy) {
  const Ran ran = run(words_of("train --device cpu --out a optim.lr=1e30 optim.clip=0 optim.warmup_steps=0") + tiny_);
  ASSERT_EQ(ran.status, 1) << ran.out;
  EXPECT_TRUE(says(ran.err, "docs/monitoring.md#a-loss-that-is-not-finite"));
  const Ran report = run({"report", "a", "--json"});
  EXPECT_EQ(io::parse_json(report.out, "stdout")["runs"][0]["state"], "failed");
}

TEST_F(ReportTest, BadInputIsASentenceAndTheRestIsShown) {
  expect_bad_input({"report"}, {"needs a run"});
  expect_bad_input({"report", "nowhere"}, {"nowhere", "no such folder"});
  real_files().create_folders(folder_ / "empty");
  expect_bad_input({"report", "empty"}, {"empty holds no run", "metrics.jsonl"});
  expect_bad_input({"report", "nowhere", "empty"}, {"none of the 2 runs"});
  expect_bad_input({"train", "log.sinks=console,tensorbord"}, {"log.sinks", "tensorbord", "tensorboard"});
  train("a");
  write("a/metrics.jsonl", text("a/metrics.jsonl") + "{\"step\":31,\"lo");
  const Ran ran = run({"report", "a", "nowhere", "--out", "page.html"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_TRUE(says(ran.err, {"warning: nowhere: there is no such folder", "ends in half a line"}));
  EXPECT_NE(text("page.html").find("there is no such folder"), std::string::npos);
}

TEST_F(ReportTest, AFolderOfRuns) {
  train("runs/a", {"train.sample_every=10"});
  train("runs/b");
  write("runs/notes.txt", "");
  real_files().create_folders(folder_ / "runs/broken/metrics.jsonl");
  const Ran ran = must({"report", "runs"});
  EXPECT_TRUE(says(ran.out, "report: runs/report.html"));
  EXPECT_TRUE(says(ran.err, "runs/broken/metrics.jsonl"));
  const io::Json page = data("runs/report.html");
  ASSERT_EQ(page["runs"].size(), 2u);
  EXPECT_EQ(page["unreadable"].size(), 1u);
  EXPECT_EQ(page["runs"][1]["run"], "b");
  EXPECT_TRUE(page["runs"][1]["samples"].empty());
  ASSERT_EQ(page["runs"][0]["samples"].size(), 3u) << "after steps 10, 20 and 30";
  EXPECT_EQ(page["runs"][0]["samples"][2]["step"], 30);
  must({"report", "runs/b", "runs"});
  EXPECT_EQ(data("runs/b/report.html")["runs"].size(), 2u) << "each once";
}

TEST_F(ReportTest, AFileThatCannotBeReadCostsItsRunOnly) {
  train("a");
  real_files().create_folders(folder_ / "broken/metrics.jsonl");
  const Ran ran = must({"report", "a", "broken", "--out", "page.html"});
  EXPECT_TRUE(says(ran.err, "broken/metrics.jsonl"));
  EXPECT_TRUE(says(ran.out, "a: finished"));
}

TEST_F(ReportTest, TheTableOfMetricsIsPrinted) {
  const Ran ran = must({"report", "--metrics"});
  EXPECT_EQ(ran.out, report::metrics_as_markdown());
  expect_bad_input({"report", "--metrics", "a"}, {"--metrics", "cannot be combined"});
}

TEST_F(ReportTest, ASlashAtTheEndIsNoPartOfTheName) {
  train("a");
  EXPECT_EQ(run({"report", "a/"}).out.substr(0, 3), "a: ");
}

TEST_F(ReportTest, AProfileOfTheRunIsInItsReport) {
  train("a");
  Ran ran = run({"profile", "--run", "a", "--device", "cpu", "--steps", "1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(exists("a/profile.json"));
  must({"report", "a"});
  EXPECT_NE(text("a/report.html").find("linear_weight_grad"), std::string::npos);
  expect_bad_input({"profile", "--run", "nowhere"}, {"--run nowhere", "holds no run"});
  expect_bad_input({"profile", "quick", "--run", "a"}, {"quick"});
}

}  // namespace
}  // namespace redline::cli
