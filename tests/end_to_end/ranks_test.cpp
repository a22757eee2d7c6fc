// Runs on several ranks as a user starts them: real processes. Losses are those of one rank, modes have the
// same bits, and a rank that is killed inside a save loses nothing.
// REDLINE_RANKS_KILLS=50 kills fifty times instead of three.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/files.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"

namespace redline {
namespace {

// Packed documents of unequal lengths; four micro-batches a step, whoever computes them.
const char* const kRun =
    " train --preset quick --device cpu model.layers=2 model.hidden=32 model.heads=2 model.head_dim=16 model.ffn=48 "
    "train.batch_size=1 train.seq_len=64 data.max_segments=8 optim.lr=3e-3 optim.warmup_steps=4 train.eval_batches=4 "
    "train.eval_every=5 ";

struct Row {
  std::int64_t step;
  double loss, norm, eval_loss;
  bool operator==(const Row&) const = default;
};

class RankProcesses : public ::testing::Test {
 protected:
  std::string line(int ranks, const std::string& keys, const std::string& out, int sequence = 1) const {
    const std::string launch = ranks == 1 ? "" : fmt::format(" launch -n {} --", ranks);
    return fmt::format("exec {}{}{}train.accumulate={} {} --out {} >> {} 2>&1", testing::program(), launch, kRun,
                       4 * sequence / ranks, keys, (temp_.path() / out).string(), log().string());
  }
  int train(int ranks, const std::string& keys, const std::string& out, int sequence = 1) const {
    const int status = std::system(line(ranks, keys, out, sequence).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static std::string kill_rank(pid_t launch, int rank) {
    return fmt::format(
        "for p in $(pgrep -P {}); do tr '\\0' '\\n' < /proc/$p/environ | grep -qx RANK={} && kill -9 $p && exit 0; "
        "done 2>/dev/null; exit 1",
        launch, rank);
  }
  Path log() const { return temp_.path() / "log"; }
  std::string told() const { return real_files().exists(log()) ? real_files().read(log()) : ""; }

  std::vector<Row> rows(const std::string& out) const {
    std::vector<Row> all;
    std::ifstream file(temp_.path() / out / "metrics.jsonl");
    for (std::string text; std::getline(file, text);) {
      const io::Json row = io::Json::parse(text);
      if (row["step"] == 0) continue;
      all.push_back({row["step"], row["loss"].is_null() ? NAN : row["loss"].get<double>(),
                     row["grad_norm"].is_null() ? NAN : row["grad_norm"].get<double>(), row.value("eval_loss", -1.0)});
    }
    return all;
  }
  std::string tensors(const std::string& out, std::int64_t step) const {
    const Path folder = temp_.path() / out / "checkpoints" / io::checkpoint_name(step);
    return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
  }
  testing::TempFolder temp_;
};

TEST_F(RankProcesses, LossesAreThoseOfOneRankAndModesHaveTheSameBits) {
  const std::string steps = "train.max_steps=12";
  ASSERT_EQ(train(1, steps, "one"), 0) << told();
  const std::vector<Row> one = rows("one");
  ASSERT_EQ(one.size(), 12u);
  for (const int ranks : {2, 4}) {
    const std::string name = fmt::format("zero1 on {}", ranks);
    ASSERT_EQ(train(ranks, steps + " parallel.mode=zero1", fmt::format("zero1-{}", ranks)), 0) << told();
    const std::vector<Row> got = rows(fmt::format("zero1-{}", ranks));
    ASSERT_EQ(got.size(), one.size()) << name;
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(got[i].loss, one[i].loss, 1e-5 * one[i].loss) << name << ", step " << i + 1;
      EXPECT_NEAR(got[i].eval_loss, one[i].eval_loss, 1e-5 * std::abs(one[i].eval_loss)) << name << ", step " << i + 1;
    }
  }
  for (const char* mode : {"ddp", "fsdp"}) {
    ASSERT_EQ(train(4, fmt::format("{} parallel.mode={}", steps, mode), mode), 0) << told();
    EXPECT_EQ(rows(mode), rows("zero1-4")) << mode;
    EXPECT_EQ(tensors(mode, 12), tensors("zero1-4", 12)) << mode;
  }
  for (const char* mode : {"zero1", "fsdp"}) {
    const std::string out = fmt::format("copies-{}", mode);
    ASSERT_EQ(train(4, fmt::format("{} parallel.mode={} parallel.shards=2", steps, mode), out), 0) << told();
    EXPECT_EQ(rows(out), rows("zero1-4")) << out;
    EXPECT_EQ(tensors(out, 12), tensors("zero1-4", 12)) << out;
  }
  EXPECT_NE(told().find("are shared out among 2 at a time"), std::string::npos);
  EXPECT_EQ(train(4, steps + " parallel.mode=fsdp parallel.shards=3", "odd"), 2);
  EXPECT_NE(told().find("parallel.shards = 3 shares the state out among 3 ranks, and there are 4"), std::string::npos);
}

// The card of a rank that fails twice, with no checkpoint between, is given up: of four ranks two go on, since three
// cannot share the step's four micro-batches. The steps are those of the run that nobody disturbed.
TEST_F(RankProcesses, ARankThatFailsTwiceIsLeftOut) {
  const std::string keys = "train.max_steps=300 checkpoint.every=0 train.eval_every=0";
  ASSERT_EQ(train(2, keys, "straight"), 0) << told();
  const pid_t launch = ::fork();
  ASSERT_GE(launch, 0);
  if (launch == 0) {
    const std::string command =
        fmt::format("exec {} launch -n 4 --restarts 5 --min-ranks 2 --{}train.accumulate=1 {} --out {} >> {} 2>&1",
                    testing::program(), kRun, keys, (temp_.path() / "killed").string(), log().string());
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  const auto sessions = [&] {
    const Path path = temp_.path() / "killed" / "events.jsonl";
    const std::string events = real_files().exists(path) ? real_files().read(path) : "";
    int n = 0;
    for (std::size_t at = events.find("\"started\""); at != events.npos; at = events.find("\"started\"", at + 1)) ++n;
    return n;
  };
  for (int kill = 0; kill < 2; ++kill) {
    for (int i = 0; i < 6000 && sessions() <= kill; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(std::system(kill_rank(launch, 1).c_str()), 0) << told();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(launch, &status, 0), launch);
  ASSERT_EQ(WEXITSTATUS(status), 0) << told();
  EXPECT_NE(told().find("restart 2 of 5 after a failure (rank 1 "), std::string::npos) << told();
  EXPECT_NE(told().find("place 1 is left out; 2 ranks instead of 4)"), std::string::npos) << told();
  const std::vector<Row> straight = rows("straight"), got = rows("killed");
  ASSERT_EQ(got.size(), straight.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i].loss, straight[i].loss, 1e-4 * straight[i].loss) << "step " << i + 1;
  const std::string events = real_files().read(temp_.path() / "killed" / "events.jsonl");
  EXPECT_NE(events.find("\"restart\":\"restart 1 of 5"), std::string::npos) << events;
  EXPECT_NE(events.find("\"restart\":\"restart 2 of 5"), std::string::npos) << events;
}

// Two groups of two ranks; then one group goes on, and then one rank, which has all rows of a step.
TEST_F(RankProcesses, RowsThatRanksShareAreThoseOfOneRank) {
  ASSERT_EQ(train(1, "train.max_steps=12", "one"), 0) << told();
  const std::vector<Row> one = rows("one");
  const auto expect_same = [&](const std::string& name) {
    const std::vector<Row> got = rows(name);
    ASSERT_EQ(got.size(), one.size()) << told();
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(got[i].loss, one[i].loss, 1e-5 * one[i].loss) << name << ", step " << i + 1;
      if (one[i].eval_loss > 0) {
        EXPECT_NEAR(got[i].eval_loss, one[i].eval_loss, 1e-5 * one[i].eval_loss) << name << ", step " << i + 1;
      }
    }
  };
  for (const char* mode : {"ddp", "zero1", "fsdp"}) {
    const std::string name = fmt::format("shared-{}", mode);
    const std::string keys = fmt::format("parallel.sequence=2 parallel.mode={} train.max_steps=12", mode);
    ASSERT_EQ(train(4, keys, name, 2), 0) << told();
    expect_same(name);
  }
  const std::string to = (temp_.path() / "moved").string();
  ASSERT_EQ(train(4, "parallel.sequence=2 train.max_steps=4", "moved", 2), 0) << told();
  const auto go_on = [&](const std::string& launch, const std::string& keys) {
    return std::system(fmt::format("exec {} {} train --resume --device cpu --out {} {} >> {} 2>&1", testing::program(),
                                   launch, to, keys, log().string())
                           .c_str());
  };
  ASSERT_EQ(go_on("launch -n 2 --", "train.max_steps=8"), 0) << told();
  EXPECT_NE(go_on("", "train.max_steps=12"), 0) << "one rank has no group of two";
  EXPECT_NE(told().find("parallel.sequence = 2 shares every row among 2 ranks, and there is 1"), std::string::npos);
  ASSERT_EQ(go_on("", "train.max_steps=12 parallel.sequence=1"), 0) << told();
  EXPECT_EQ(rows("moved").size(), 12u);
}

TEST_F(RankProcesses, ARankKilledInsideASaveLosesNothing) {
  const std::string keys = "train.max_steps=40 checkpoint.every=2 train.eval_every=0";
  ASSERT_EQ(train(2, keys, "straight"), 0) << told();
  const char* const asked = std::getenv("REDLINE_RANKS_KILLS");
  const int kills = asked ? std::atoi(asked) : 3;
  std::mt19937 random(7);
  bool resumed = false;
  int killed = 0;
  for (int k = 0; k < kills; ++k) {
    if (std::filesystem::exists(temp_.path() / "killed" / "checkpoints" / io::checkpoint_name(40))) {
      std::filesystem::remove_all(temp_.path() / "killed");  // it got to its end: once more
      resumed = false;
    }
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const std::string command = line(2, keys + (resumed ? " --resume" : ""), "killed");
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    // Once something was saved anew, and a moment later; or the run is over.
    const auto saved = [&] {
      std::error_code error;
      std::filesystem::path newest;
      for (const auto& e : std::filesystem::directory_iterator(temp_.path() / "killed" / "checkpoints", error))
        newest = std::max(newest, e.path());
      return newest.string();
    };
    const std::string before = saved();
    int status = 0;
    bool over = false;
    for (int i = 0; i < 1500 && saved() == before && !over; ++i) {
      over = ::waitpid(pid, &status, WNOHANG) == pid;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    if (!over) {
      killed += std::system(kill_rank(pid, static_cast<int>(random() % 2)).c_str()) == 0;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    }
    resumed = true;
  }
  EXPECT_GT(killed, 0) << "all runs were over before they could be killed";
  ASSERT_EQ(train(2, keys + " --resume", "killed"), 0) << told();
  EXPECT_EQ(rows("killed"), rows("straight")) << told();
  EXPECT_EQ(tensors("killed", 40), tensors("straight", 40));
}

}  // namespace
}  // namespace redline
