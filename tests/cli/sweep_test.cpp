// `redline sweep`: its grid, the rule by which runs are hopeless, and the command as a user runs it.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "cli/program.h"
#include "cli/sweep_runs.h"
#include "config/load.h"
#include "io/json.h"
#include "testing/page_data.h"

namespace redline::cli {
namespace {

using Overrides = std::vector<std::vector<std::string>>;

TEST(SweepGrid, TheLastKeyChangesFastest) {
  const auto grid = read_grid({"optim.lr=1e-3,2e-3", "train.seed=1,2"}, {});
  EXPECT_EQ(combinations(grid), (Overrides{{"optim.lr=1e-3", "train.seed=1"},
                                           {"optim.lr=1e-3", "train.seed=2"},
                                           {"optim.lr=2e-3", "train.seed=1"},
                                           {"optim.lr=2e-3", "train.seed=2"}}));
}

TEST(SweepGrid, CommasWithinAValue) {
  const auto grid = read_grid({"data.buckets=[64,128],[256]", "data.separator=\"a,b\",c"}, {});
  EXPECT_EQ(grid[0].values, (std::vector<std::string>{"[64,128]", "[256]"}));
  EXPECT_EQ(grid[1].values, (std::vector<std::string>{"\"a,b\"", "c"}));
}

TEST(SweepGrid, NamesAreShortAndApart) {
  EXPECT_EQ(short_names({"optim.lr", "train.seed"}), (std::vector<std::string>{"lr", "seed"}));
  EXPECT_EQ(short_names({"data.seed", "train.seed"}), (std::vector<std::string>{"data.seed", "train.seed"}));
  EXPECT_EQ(run_folder_name({"lr", "seed"}, {"0.001", "1"}, {}), "lr=0.001,seed=1");
  EXPECT_EQ(run_folder_name({"lr"}, {"0.001"}, {"lr=0.001"}), "lr=0.001-2");
  EXPECT_EQ(run_folder_name({"train"}, {"/a b/c.txt"}, {}), "train=_a_b_c.txt");
  const std::string a = run_folder_name({"train"}, {std::string(300, 'x') + "a"}, {});
  EXPECT_LT(a.size(), 200u);
  EXPECT_NE(a, run_folder_name({"train"}, {std::string(300, 'x') + "b"}, {}));
}

// Runs of 100 steps: each of a group, with its held-out loss after 20, 40, 60... steps.
class SweepRule : public ::testing::Test {
 protected:
  JudgedRun run(const std::string& group, const std::vector<double>& losses, const Words& more = {}) {
    config::Config& config = configs_.emplace_back(config::load({"", "quick", more}));
    auto& evaluations = evaluations_.emplace_back();
    for (std::size_t i = 0; i < losses.size(); ++i) evaluations[20 * (static_cast<std::int64_t>(i) + 1)] = losses[i];
    return {&config, group, &evaluations};
  }
  std::string judge(const JudgedRun& judged, const std::vector<JudgedRun>& others, double margin = 0.05) {
    return hopeless(judged, others, 100, margin);
  }
  std::deque<config::Config> configs_;
  std::deque<std::map<std::int64_t, double>> evaluations_;
};

TEST_F(SweepRule, NobodyBeforeAQuarterOrAlone) {
  EXPECT_EQ(judge(run("a", {9}), {run("b", {2})}), "") << "step 20 of 100";
  EXPECT_EQ(judge(run("a", {9, 9}), {}), "") << "the first run";
  EXPECT_EQ(judge(run("a", {9, 9}), {run("b", {2})}), "") << "no other run has come that far";
  EXPECT_EQ(hopeless(run("a", {9, 9}), {run("b", {2, 2})}, 0, 0.05), "") << "its end is not known";
  EXPECT_EQ(judge(run("a", {9, 9, 9, 9, 9}), {run("b", {2, 2, 2, 2, 2})}), "") << "it has made its last step";
}

TEST_F(SweepRule, AboveTheMedianByMoreThanTheMargin) {
  const std::vector<JudgedRun> others = {run("b", {9, 2.0}), run("c", {9, 3.0}), run("d", {9, 4.0})};
  EXPECT_EQ(judge(run("a", {9, 3.14}), others), "");
  const std::string why = judge(run("a", {9, 3.3}), others);
  EXPECT_EQ(why, "held-out loss 3.3000 at step 40, 10.0% above 3.0000, the median of 3 other settings there");
  EXPECT_EQ(judge(run("a", {9, 3.3}), others, 0.2), "");
  EXPECT_NE(judge(run("a", {9, 2.2}), {others[0], others[1]}), "") << "of two, the better one counts";
  EXPECT_NE(judge(run("a", {9, std::numeric_limits<double>::infinity()}), {}), "");
}

TEST_F(SweepRule, ASeedIsNotStoppedByLuck) {
  const std::vector<JudgedRun> others = {run("a", {9, 2.0}, {"train.seed=1"}), run("b", {9, 2.0})};
  EXPECT_EQ(judge(run("a", {9, 3.0}, {"train.seed=2"}), others), "");
  EXPECT_NE(judge(run("c", {9, 3.0}, {"train.seed=2"}), others), "");
}

TEST_F(SweepRule, OnlyWhatCanBeCompared) {
  for (const char* other : {"train.batch_size=4", "train.max_steps=50", "data.seed=3", "optim.schedule=wsd"})
    EXPECT_EQ(judge(run("a", {9, 3.0}), {run("b", {9, 2.0}, {other})}), "") << other;
  EXPECT_NE(judge(run("a", {9, 3.0}), {run("b", {9, 2.0}, {"optim.lr=1e-3", "model.layers=2"})}), "");
}

class SweepTest : public ProgramTest {
 protected:
  const Words tiny_ = words_of(
      "quick model.layers=1 model.hidden=16 model.heads=2 model.head_dim=8 model.ffn=16 train.batch_size=1 "
      "train.seq_len=32 train.eval_batches=1 train.eval_every=5 train.max_steps=20 checkpoint.every=10 "
      "optim.warmup_steps=0 optim.min_lr=0 --device cpu");
  Words sweep(const Words& more) { return Words{"sweep"} + tiny_ + more; }
  io::Json table(const Words& more) {
    const Ran ran = must(sweep(more));
    return io::parse_json(ran.out, "stdout");
  }
  std::string text(const std::string& name) { return real_files().read(folder_ / name); }
  std::int64_t sessions(const std::string& run) {
    const std::string events = text(run + "/events.jsonl");
    std::int64_t n = 0;
    for (std::size_t at = events.find("\"started\""); at != events.npos; at = events.find("\"started\"", at + 1)) ++n;
    return n;
  }
};

TEST_F(SweepTest, TheGridIsTrainedAndCompared) {
  const Ran ran = must(sweep({"--grid", "optim.lr=1e-3,1e-2", "--grid", "train.seed=1,2", "--out", "s"}));
  for (const char* part : {"   lr  seed  held out", "0.001     1", " 0.01     2", " finished\n", "mean ± standard",
                           "2 of 2\n", "* best: s/lr=0.01,seed=", "table: s/sweep.csv\nreport: s/sweep.html\n"})
    EXPECT_TRUE(says(ran.out, part)) << "\nin: ";
  const std::string csv = text("s/sweep.csv");
  EXPECT_EQ(std::ranges::count(csv, '\n'), 5);
  const io::Json page = testing::page_data(text("s/sweep.html"));
  ASSERT_EQ(page["runs"].size(), 4u);
  EXPECT_EQ(page["runs"][1]["run"], "lr=0.001,seed=2");
  EXPECT_NE(text("s/lr=0.001,seed=2/console.log").find("20 steps done"), std::string::npos);
  // A run's configuration can be given to other commands, whatever its folder is called.
  must({"config", "s/lr=0.01,seed=2/config.toml"});
}

TEST_F(SweepTest, TheSameCommandAgainTrainsNothing) {
  table({"--grid", "optim.lr=1e-3,1e-2", "--out", "s", "--json"});
  const std::string before = text("s/lr=0.01/metrics.jsonl");
  const io::Json again = table({"--grid", "optim.lr=1e-3,1e-2", "--out", "s", "--json"});
  EXPECT_EQ(again["runs"][1]["state"], "finished");
  EXPECT_EQ(text("s/lr=0.01/metrics.jsonl"), before);
  EXPECT_EQ(sessions("s/lr=0.01"), 1);
}

TEST_F(SweepTest, AnotherGridAddsRuns) {
  // --all: whether a run is caught as hopeless before its end is a matter of time.
  table({"--grid", "optim.lr=1e-3", "--out", "s", "--all", "--json"});
  // What is asked for comes first; seed 0 is what the first grid had without saying so.
  const io::Json more =
      table({"--grid", "optim.lr=1e-2,1e-3", "--grid", "train.seed=0", "--out", "s", "--all", "--json"});
  ASSERT_EQ(more["runs"].size(), 2u);
  EXPECT_EQ(more["runs"][0]["run"], "lr=0.01,seed=0");
  EXPECT_EQ(more["runs"][1]["run"], "lr=0.001");
  EXPECT_EQ(sessions("s/lr=0.001"), 1);
  const io::Json fewer = table({"--grid", "optim.lr=1e-2", "--out", "s", "--all", "--json"});
  ASSERT_EQ(fewer["runs"].size(), 2u) << "those of earlier grids stay in the table";
  // A key that is left to the base now has a value of its own there.
  const io::Json other = table({"optim.lr=4e-3", "--grid", "train.seed=3", "--out", "s", "--all", "--json"});
  EXPECT_EQ(other["runs"][0]["run"], "seed=3,lr=0.004");
  const io::Json back = table({"--grid", "optim.lr=1e-2", "--out", "s", "--all", "--json"});
  ASSERT_EQ(back["runs"].size(), 3u);
  EXPECT_EQ(back["runs"][1]["state"], "finished");
  const auto added =
      std::ranges::find_if(back["runs"], [](const io::Json& r) { return r["run"] == "seed=3,lr=0.004"; });
  ASSERT_NE(added, back["runs"].end());
  EXPECT_EQ((*added)["values"]["optim.lr"], 0.004);
}

TEST_F(SweepTest, AnotherBaseIsRefused) {
  table({"--grid", "optim.lr=1e-3", "--out", "s", "--json"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--out", "s", "optim.clip=0.5", "model.ffn=32"}),
                   {"another configuration", "optim.clip was 1.0 and is 0.5", "model.ffn was 16 and is 32", "--out"});
  EXPECT_EQ(run(sweep({"--grid", "optim.lr=1e-3", "--out", "s"})).status, 0);
}

TEST_F(SweepTest, HopelessRunsAreStoppedAndGoOnWithAll) {
  // Long enough to be caught in the middle.
  const Words more = {
      "--grid", "optim.lr=1e-2,1e-7", "--out", "s", "--json", "train.max_steps=1600", "train.eval_every=50"};
  const Ran ran = must(sweep(more));
  EXPECT_TRUE(says(ran.err, "lr=1e-07 was stopped as hopeless: held-out loss"));
  const io::Json stopped = io::parse_json(ran.out, "stdout")["runs"][1];
  EXPECT_EQ(stopped["state"], "hopeless");
  EXPECT_GE(stopped["steps"], 400);
  EXPECT_LT(stopped["steps"], 1600);
  Words all = more;
  all.push_back("--all");
  const io::Json done = table(all);
  EXPECT_EQ(done["runs"][1]["state"], "finished");
  EXPECT_EQ(done["runs"][1]["steps"], 1600);
  EXPECT_EQ(done["best"], "lr=0.01");
  EXPECT_EQ(sessions("s/lr=1e-07"), 2) << "it went on from where it was stopped";
}

TEST_F(SweepTest, ARunThatDivergesOrFailsEndsNothingButItself) {
  Ran ran = run(sweep({"--grid", "optim.lr=1e30,1e-3", "--out", "s", "optim.clip=0"}));
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"diverged at step", "* best: s/lr=0.001"}));
  write("a.txt", "words and more words, so that there is something to learn from. words and more words again.");
  const Words data = {"--grid",          "data.train=nowhere.txt,a.txt", "--out", "t",
                      "data.eval=a.txt", "data.tokenizer=bytes"};
  ran = run(sweep(data));
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_TRUE(says(ran.err, "warning: train=nowhere.txt failed: "));
  EXPECT_TRUE(says(ran.out, "1 of 2 runs left; the same command goes on"));
  write("nowhere.txt", text("a.txt"));
  ran = run(sweep(data));
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(sessions("t/train=a.txt"), 1) << "what had finished stays";
}

TEST_F(SweepTest, ADryRunWritesNothing) {
  const Ran ran = must(sweep({"--grid", "optim.lr=1e-3,1e-2", "--dry-run"}));
  EXPECT_EQ(ran.out,
            "lr=0.001  waiting\nlr=0.01   waiting\ndry run: 2 runs in runs/quick-sweep, 2 to do; nothing was "
            "written\n");
  EXPECT_FALSE(exists("runs"));
}

TEST_F(SweepTest, BadInputIsToldBeforeAnythingRuns) {
  expect_bad_input(sweep({}), {"--grid optim.lr="});
  expect_bad_input(sweep({"--grid", "optim.lr"}), {"--grid optim.lr", "a key and its values"});
  expect_bad_input(sweep({"--grid", "optim.lrr=1,2"}), {"optim.lrr", "did you mean 'optim.lr'?"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3,x"}), {"with optim.lr=x", "optim.lr"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3,,2e-3"}), {"a value missing"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3,0.001"}), {"come to the same configuration"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--grid", "optim.lr=2e-3"}), {"in the grid already"});
  expect_bad_input(sweep({"--grid", "train.max_steps=10,20"}), {"also given as key=value"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "log.sinks=console"}), {"log.sinks", "jsonl"});
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--margin", "-1"}), {"--margin"});
  EXPECT_FALSE(exists("runs"));
  real_files().create_folders(folder_ / "full/of/things");
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--out", "full"}), {"not empty", "sweep.json"});
  write("file", "");
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--out", "file"}), {"not a folder"});
  table({"--grid", "optim.lr=1e-3", "--out", "s", "--json"});
  write("s/sweep.json", "{\"version\": 1, ");
  expect_bad_input(sweep({"--grid", "optim.lr=1e-3", "--out", "s"}), {"s/sweep.json", "JSON"});
}

}  // namespace
}  // namespace redline::cli
