// The promise that matters most: a run killed without warning, at any moment, ends as if nothing had happened. The real
// program is trained straight, then killed (SIGKILL) at three random moments and resumed; every parameter, every moment
// and every logged loss must be equal to the bit. REDLINE_RESUME_REPEATS=20 does it twenty times over.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "base/files.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

extern char** environ;

namespace redline {
namespace {

pid_t start(const Path& out, bool resume, const Path& log, const std::string& limit = "") {
  std::vector<std::string> words = {testing::program(), "train", "--preset", "quick", "--out", out.string()};
  if (resume) words.push_back("--resume");
  words.insert(words.end(), testing::kTinyRun.begin(), testing::kTinyRun.end());
  words.push_back("checkpoint.every=3");
  if (!limit.empty()) words.push_back("memory.limit=" + limit);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

// The exit status, or minus the signal that ended it.
int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// What must repeat of every step: not times and rates.
std::vector<std::string> logged(const Path& run) {
  std::vector<std::string> rows;
  const std::string text = real_files().read(run / "metrics.jsonl");
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const io::Json row = io::parse_json(std::string_view(text).substr(begin, end - begin), "metrics.jsonl");
    if (row["step"] == 0) continue;  // the evaluation before the first
    rows.push_back(io::Json{row["step"], row["loss"], row["grad_norm"], row["lr"], row["tokens"], row["padding"],
                            row.value("eval_loss", -1.0)}
                       .dump());
  }
  EXPECT_EQ(begin, text.size()) << "a torn last line";
  return rows;
}

std::string tensors(const Path& run) {
  const Path folder = run / "checkpoints" / io::checkpoint_name(40);
  io::Json state = io::read_json(real_files(), folder / "state.json");
  EXPECT_GT(state["ends"]["seconds"], 0);  // that it trained, which no run repeats
  state["ends"].erase("seconds");
  return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors") +
         state.dump();
}

// It goes on under another limit each time: with state in the host's memory, then gradients and weights as well, which
// come and go while it is killed.
TEST(Resume, ARunKilledThreeTimesEndsToTheBitAsOneThatWasNot) {
  const char* const limits[] = {"900KiB", "600KiB", "700KiB"};  // of 1138 that it would take
  testing::TempFolder temp;
  const Path straight = temp.path() / "straight", log = temp.path() / "log";
  ASSERT_EQ(wait_for(start(straight, false, log)), 0) << real_files().read(log);
  const std::vector<std::string> expected_rows = logged(straight);
  ASSERT_EQ(expected_rows.size(), 40u);
  const std::string expected_tensors = tensors(straight);

  const char* repeats = std::getenv("REDLINE_RESUME_REPEATS");
  const int rounds = repeats ? std::max(1, std::atoi(repeats)) : 1;
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < rounds; ++round) {
    const Path killed = temp.path() / fmt::format("killed {}", round);
    for (int kills = 0; kills < 3; ++kills) {
      const pid_t pid = start(killed, true, log, limits[kills]);
      // After a random number of rows more than there are, and a random time within a step, an evaluation or a save:
      // each kill but the first comes after some that counted, and none after the end.
      const auto rows = [&] {
        const std::string text =
            real_files().exists(killed / "metrics.jsonl") ? real_files().read(killed / "metrics.jsonl") : "";
        return std::count(text.begin(), text.end(), '\n');
      };
      const std::ptrdiff_t row = std::uniform_int_distribution<std::ptrdiff_t>(8 * kills + 1, 8 * kills + 8)(random);
      while (rows() < row) {
        ASSERT_EQ(waitpid(pid, nullptr, WNOHANG), 0) << "it ended by itself: " << real_files().read(log);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, 4000)(random)));
      kill(pid, SIGKILL);
      ASSERT_EQ(wait_for(pid), -SIGKILL) << real_files().read(log);
    }
    ASSERT_EQ(wait_for(start(killed, true, log)), 0) << real_files().read(log);
    EXPECT_EQ(logged(killed), expected_rows) << "round " << round;
    EXPECT_EQ(tensors(killed), expected_tensors) << "round " << round;
    EXPECT_NE(real_files().read(log).find("gradients and weights lie in the host's memory"), std::string::npos);
  }
}

TEST(Resume, ASignalEndsTheRunWithAStatusOfItsOwnAndNothingIsLost) {
  testing::TempFolder temp;
  for (int signal : {SIGTERM, SIGINT}) {
    const Path run = temp.path() / fmt::format("{}", signal), log = temp.path() / "log";
    const pid_t pid = start(run, false, log);
    const auto stepped = [&] {
      return real_files().exists(run / "metrics.jsonl") &&
             real_files().read(run / "metrics.jsonl").find("\"step\":1,") != std::string::npos;
    };
    while (!stepped()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(pid, signal);
    EXPECT_EQ(wait_for(pid), 3) << real_files().read(log);
    const auto found = io::newest_whole_checkpoint(real_files(), run / "checkpoints", [](auto&) {});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step, static_cast<std::int64_t>(logged(run).size()));  // all that was done is saved
    EXPECT_EQ(wait_for(start(run, true, log)), 0) << real_files().read(log);
    EXPECT_EQ(logged(run).size(), 40u);
  }
}

}  // namespace
}  // namespace redline
