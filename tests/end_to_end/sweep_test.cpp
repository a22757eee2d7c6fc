// A sweep that is stopped or killed goes on with the same command, and every run ends as if nothing had happened.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/files.h"
#include "io/checkpoint_folder.h"
#include "io/json.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"
#include "train/tiny_run.h"

extern char** environ;

namespace redline {
namespace {

class SweepStopTest : public ::testing::Test {
 protected:
  pid_t start(const std::string& out) {
    std::vector<std::string> words = {testing::program(),    "sweep", "quick", "--grid", "optim.beta1=0.9,0.8", "--out",
                                      (temp_ / out).string()};
    words.insert(words.end(), testing::kTinyRun.begin(), testing::kTinyRun.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, (temp_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  void wait_for_rows(const std::string& run, std::ptrdiff_t rows) const {
    const Path file = temp_ / run / "metrics.jsonl";
    for (int i = 0; i < 30000; ++i) {
      const std::string text = real_files().exists(file) ? real_files().read(file) : "";
      if (std::ranges::count(text, '\n') >= rows) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << "no rows in " << file << ": " << log();
  }
  std::string log() const { return real_files().read(temp_ / "log"); }
  std::string parameters(const std::string& run) const {
    return real_files().read(temp_ / run / "checkpoints" / io::checkpoint_name(40) / "model.safetensors");
  }
  std::string state(const std::string& sweep, int run) const {
    return io::read_json(real_files(), temp_ / sweep / "sweep.json")["runs"][run]["state"];
  }
  testing::TempFolder temp_;
};

TEST_F(SweepStopTest, StoppedOrKilledItGoesOn) {
  ASSERT_EQ(wait_for(start("straight")), 0) << log();

  // A signal in the first run: it is saved, and the second is not begun.
  pid_t pid = start("stopped");
  wait_for_rows("stopped/beta1=0.9", 5);
  kill(pid, SIGTERM);
  ASSERT_EQ(wait_for(pid), 3) << log();
  EXPECT_EQ(state("stopped", 0), "interrupted");
  EXPECT_EQ(state("stopped", 1), "waiting");
  EXPECT_FALSE(real_files().list(temp_ / "stopped/beta1=0.9/checkpoints").empty()) << "it was saved";
  EXPECT_TRUE(testing::says(log(), {"stopped: 2 of 2 runs left; the same command goes on"}));

  // A kill in the second.
  pid = start("stopped");
  wait_for_rows("stopped/beta1=0.8", 5);
  kill(pid, SIGKILL);
  ASSERT_EQ(wait_for(pid), -SIGKILL);
  EXPECT_EQ(state("stopped", 0), "finished");
  EXPECT_EQ(state("stopped", 1), "running");
  // Its run may still be saving its state: the next sweep waits for that.
  ASSERT_EQ(wait_for(start("stopped")), 0) << log();
  for (const char* run : {"beta1=0.9", "beta1=0.8"})
    EXPECT_EQ(parameters(std::string("stopped/") + run), parameters(std::string("straight/") + run)) << run;
}

// A second sweep in the same folder would train the same runs.
TEST_F(SweepStopTest, OneAtATime) {
  const pid_t pid = start("s");
  wait_for_rows("s/beta1=0.9", 1);
  const pid_t second = start("s");
  EXPECT_EQ(wait_for(second), 2);
  EXPECT_TRUE(testing::says(log(), {"another sweep is under way"}));
  kill(pid, SIGTERM);
  EXPECT_EQ(wait_for(pid), 3) << log();
}

}  // namespace
}  // namespace redline
