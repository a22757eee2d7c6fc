// Processes that end together, with the shell as their program; and what redline launch says where it cannot start any.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "cli/processes.h"
#include "cli/program.h"
#include "dist/group.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

class Processes : public ProgramTest {
 protected:
  // What each of them runs; it writes into the folder of the test.
  std::vector<ProcessToStart> shells(const std::vector<std::string>& scripts) {
    std::vector<ProcessToStart> all;
    for (const std::string& script : scripts) {
      ProcessToStart one;
      one.program = "sh";
      one.words = {"-c", "cd " + quoted(folder_.path().string()) + "; " + script};
      one.name = "rank " + std::to_string(all.size());
      all.push_back(one);
    }
    return all;
  }
};

TEST_F(Processes, AllOfThemRun) {
  const ProcessesEnd end = run_processes(shells({"echo a > 0", "sleep 0.2; echo b > 1"}));
  EXPECT_EQ(end.status, 0);
  EXPECT_TRUE(exists("0") && exists("1"));
}

TEST_F(Processes, TheFirstFailureCountsAndEndsTheOthers) {
  const double begin = steady_seconds();
  const ProcessesEnd end = run_processes(
      shells({"trap 'echo t > termed; exit 0' TERM; sleep 60 > /dev/null 2>&1 & wait", "exit 7", "sleep 0.5; exit 2"}),
      {0.2, 5});
  EXPECT_EQ(end.status, 7);
  EXPECT_EQ(end.who, "rank 1");
  EXPECT_EQ(end.how, "exit status 7");
  EXPECT_FALSE(end.asked_to);
  EXPECT_TRUE(exists("termed"));
  EXPECT_LT(steady_seconds() - begin, 20);
}

TEST_F(Processes, WhoDoesNotListenIsKilled) {
  const double begin = steady_seconds();
  const ProcessesEnd end = run_processes(shells({"trap '' TERM; sleep 60", "kill -9 $$"}), {0.1, 0.3});
  EXPECT_EQ(end.status, 1);
  EXPECT_TRUE(says(end.how, "signal 9"));
  EXPECT_LT(steady_seconds() - begin, 20);
}

TEST_F(Processes, AStopIsNoFailureThatEndsOthers) {
  const ProcessesEnd end = run_processes(shells({"exit 3", "sleep 1; echo b > 1"}), {0.1, 0.1});
  EXPECT_EQ(end.status, 3);
  EXPECT_TRUE(exists("1"));
}

TEST_F(Processes, SignalsGoToAll) {
  const auto scripts = shells({"trap 'echo t > 0; exit 3' TERM; touch ready0; sleep 60 > /dev/null 2>&1 & wait",
                               "trap 'echo t > 1; exit 3' TERM; touch ready1; sleep 60 > /dev/null 2>&1 & wait"});
  std::thread sender([&] {
    for (int i = 0; i < 3000 && !(exists("ready0") && exists("ready1")); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(::getpid(), SIGTERM);
  });
  const ProcessesEnd end = run_processes(scripts);
  sender.join();
  EXPECT_EQ(end.status, 3);
  EXPECT_TRUE(end.asked_to);
  EXPECT_TRUE(exists("0") && exists("1"));
}

TEST_F(Processes, SignalsGoPastAProgramThatWouldEndItsChildren) {
  auto all =
      shells({"sh -c \"trap 'echo t > child; exit 3' TERM; touch ready; sleep 60 > /dev/null 2>&1 & wait\" & wait $!; "
              "exit $?"});
  all[0].passes_signals_down = true;
  std::thread sender([&] {
    for (int i = 0; i < 3000 && !exists("ready"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(::getpid(), SIGTERM);
  });
  const ProcessesEnd end = run_processes(all);
  sender.join();
  EXPECT_EQ(end.status, 3);
  EXPECT_TRUE(exists("child"));
}

TEST_F(Processes, TheEnvironmentIsOursAndWhatIsGiven) {
  ::setenv("REDLINE_TEST_KEPT", "kept", 1);
  ::setenv("REDLINE_TEST_GONE", "gone", 1);
  auto all = shells({"echo $REDLINE_TEST_KEPT.$REDLINE_TEST_GONE.$RANK > out"});
  all[0].environment = {{"RANK", "5"}, {"REDLINE_TEST_GONE", ""}};
  EXPECT_EQ(run_processes(all).status, 0);
  EXPECT_EQ(real_files().read(folder_ / "out"), "kept..5\n");
}

TEST_F(Processes, APrefixStandsBeforeEachLine) {
  auto all = shells({"echo zero", "echo one; printf 'two\\nthree'; echo four >&2"});
  all[1].prefix = "[rank 1] ";
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_processes(all).status, 0);
  const std::string err = ::testing::internal::GetCapturedStderr(), out = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(says(out, {"[rank 1] one\n", "[rank 1] two\n", "[rank 1] three\n"}));
  EXPECT_TRUE(out.starts_with("zero\n") || out.find("\nzero\n") != out.npos) << out;
  EXPECT_EQ(err, "[rank 1] four\n");
}

class Launch : public ProgramTest {};

TEST_F(Launch, NeedsRanksAndACommand) {
  expect_bad_input({"launch", "-n", "2"}, {"after --"});
  expect_bad_input({"launch", "--", "train"}, {"-n N"});
  expect_bad_input({"launch", "-n", "0", "--", "train"}, {"-n", "1 to 1024"});
  expect_bad_input({"launch", "-n", "2", "--", "info"}, {"starts train", "'info'"});
  expect_bad_input({"launch", "-n", "2", "--restarts", "1", "--", "train"}, {"--restarts", "--out"});
  expect_bad_input({"launch", "-n", "2", "--share-card", "--", "train", "--device", "cpu"}, {"--share-card"});
}

TEST_F(Launch, InsideALaunchIsRefused) {
  const std::string variables = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500";
  const std::string command = "cd " + quoted(folder_.path().string()) + " && " + variables + " " +
                              quoted(testing::program()) + " launch -n 2 -- train 2>stderr >stdout";
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NE(real_files().read(folder_ / "stderr").find("rank 1 of 2 by torchrun"), std::string::npos);
}

// Real ranks, as mpirun starts them.
class LaunchOnCpu : public Launch {
 protected:
  void SetUp() override {
    if (!dist::mpi_status().problem.empty()) GTEST_SKIP() << dist::mpi_status().problem;
  }
  Ran launch(const Words& words) { return run(words_of("launch -n 2 -- train --device cpu") + words); }
};

TEST_F(LaunchOnCpu, RanksTrainTogetherAndRankZeroSpeaks) {
  const Ran ran = launch(kTinyModel + Words{"train.max_steps=2", "--out", "a"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, "2 ranks"));
  EXPECT_EQ(ran.out.find("2 steps done"), ran.out.rfind("2 steps done")) << ran.out;
  EXPECT_FALSE(says(ran.out, "\x1b")) << "a live line where nothing is watched";
}

TEST_F(LaunchOnCpu, BadInputIsOneSentence) { expect_bad_input(launch({"quik"}), {"quik", "quick"}); }

TEST_F(Launch, InfoNamesTheEngines) {
  const std::string out = run({"info"}).out;
  EXPECT_TRUE(says(out, {"\nmpi ", "\nnccl "}));
}

}  // namespace
}  // namespace redline::cli
