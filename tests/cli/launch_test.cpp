// Processes that end together, with the shell as their program; and what redline launch says where it cannot start any.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <thread>

#include "base/clock.h"
#include "cli/processes.h"
#include "cli/program.h"
#include "dist/group.h"
#include "dist/token.h"
#include "io/checkpoint_folder.h"
#include "testing/hostile_guest.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

using Variables = std::map<std::string, std::string>;

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
  expect_bad_input({"launch", "-n", "2", "--min-ranks", "1", "--", "train"}, {"--min-ranks", "--restarts"});
  expect_bad_input(words_of("launch -n 2 --restarts 1 --min-ranks 3 -- train --out a"), {"--min-ranks 3", "-n 2"});
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

// Real ranks on the CPU.
class LaunchOnCpu : public Launch {
 protected:
  Ran launch(const Words& words) { return run(words_of("launch -n 2 -- train --device cpu") + words); }

  // One of two ranks, as torchrun would start it on this machine.
  pid_t start_rank(int rank, const std::string& port, const Words& words, const Variables& more = {}) {
    const std::string name = "rank" + std::to_string(rank), number = std::to_string(rank);
    real_files().create_folders(folder_ / name);
    Variables variables = {{"RANK", number},          {"LOCAL_RANK", number},       {"WORLD_SIZE", "2"},
                           {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
    for (const auto& [variable, value] : more) variables[variable] = value;
    for (const auto& [variable, value] : variables) ::setenv(variable.c_str(), value.c_str(), 1);
    const pid_t started = start_program(folder_ / name, words_of("train --device cpu") + words);
    for (const auto& [variable, value] : variables) ::unsetenv(variable.c_str());
    return started;
  }
  static int status_of(pid_t process) {
    int status = 0;
    ::waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
};

TEST_F(LaunchOnCpu, RanksTrainTogetherAndRankZeroSpeaks) {
  const Ran ran = launch(kTinyModel + Words{"train.max_steps=2", "--out", "a"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"2 ranks", "shared memory"}));
  EXPECT_EQ(ran.out.find("2 steps done"), ran.out.rfind("2 steps done")) << ran.out;
  EXPECT_FALSE(says(ran.out, "\x1b")) << "a live line where nothing is watched";
}

// A run's config.toml has what "auto" chose, with the reason above it. The run goes on so while it has as many ranks;
// others choose anew, and so does whoever says "auto".
TEST_F(LaunchOnCpu, WhatAutoChoseIsKeptWithItsReason) {
  const auto kept = [&] { return real_files().read(folder_ / "a/config.toml"); };
  const std::string reason = "# chosen: parallel.mode = auto on 2 ranks: it fits\nmode = \"zero1\"";
  const Ran ran = launch(kTinyModel + words_of("train.max_steps=2 train.batch_size=auto --out a"));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"parallel.mode = auto: zero1, it fits"}));
  EXPECT_TRUE(says(kept(), {reason, "\nbatch_size = "})) << kept();
  EXPECT_EQ(kept().find("batch_size = \"auto\""), std::string::npos);

  const Ran more = launch(words_of("train.max_steps=4 --resume --out a"));
  ASSERT_EQ(more.status, 0) << more.err;
  EXPECT_FALSE(says(more.out, {"parallel.mode = auto"})) << more.out;
  EXPECT_TRUE(says(kept(), {reason}));

  const Ran anew = launch(words_of("train.max_steps=5 parallel.mode=auto --resume --out a"));
  ASSERT_EQ(anew.status, 0) << anew.err;
  EXPECT_TRUE(says(anew.out, {"parallel.mode = auto: zero1"})) << anew.out;

  const Ran own = launch(words_of("train.max_steps=6 parallel.mode=ddp --resume --out a"));
  ASSERT_EQ(own.status, 0) << own.err;
  EXPECT_TRUE(says(kept(), {"\nmode = \"ddp\""}));
  EXPECT_FALSE(says(kept(), {"# chosen: parallel.mode"})) << kept();

  const Ran alone = run(words_of("train --device cpu train.max_steps=7 parallel.mode=auto --resume --out a"));
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_TRUE(says(kept(), {"\nmode = \"auto\""}));
}

// What does not go together is refused by a run and by its plan, in the same words.
TEST_F(LaunchOnCpu, APlanRefusesWhatARunRefusesInItsWords) {
  const auto sentence = [](const Ran& ran) {
    constexpr std::string_view kError = "redline: error: ";
    EXPECT_EQ(ran.status, 2) << ran.err;
    const std::size_t begin = ran.err.find(kError);
    if (begin == ran.err.npos) return "no error: " + ran.err;
    return ran.err.substr(begin + kError.size(), ran.err.find('\n', begin) - begin - kError.size());
  };
  for (const auto& [keys, part] : {std::pair{"precision.gradients=bf16", "does not go with several ranks"},
                                   {"precision.gradients=bf16 parallel.mode=fsdp", "does not go with several ranks"},
                                   {"parallel.mode=ddp parallel.shards=2", "does not go with parallel.mode"},
                                   {"parallel.sequence=2 train.seq_len=63", "does not go with several ranks"},
                                   {"parallel.shards=3", "start a multiple of 3"},
                                   {"parallel.ranks=3", "which 2 ranks cannot share alike"}}) {
    const Words words = kTinyModel + words_of(keys);
    const std::string run_says = sentence(launch(words + words_of("train.max_steps=1 --out a")));
    EXPECT_TRUE(says(run_says, part)) << keys;
    EXPECT_EQ(sentence(run(words_of("plan --card h200 --gpus 2") + words)), run_says) << keys;
    EXPECT_FALSE(exists("a")) << keys;
  }
  const Words both = kTinyModel + words_of("precision.gradients=bf16 log.norms_every=5");
  const std::string run_says = sentence(run(words_of("train --device cpu train.max_steps=1 --out a") + both));
  EXPECT_TRUE(says(run_says, {"log.norms_every", "precision.gradients is \"bf16\""}));
  EXPECT_EQ(sentence(run(words_of("plan --card h200") + both)), run_says);
  EXPECT_FALSE(exists("a"));
}

// A launcher that starts a run again with fewer ranks gives the words that it was begun with, --allow-change among
// them.
TEST_F(LaunchOnCpu, ARestartOnFewerRanksKeepsTheRowsOfAStepWhateverIsAllowed) {
  write("my.toml", "preset = \"quick\"\n[train]\naccumulate = 2\n");
  const auto words = [](const std::string& more) {
    return Words{"my.toml"} + kTinyModel + words_of("--out a " + more);
  };
  ASSERT_EQ(launch(words("train.max_steps=1")).status, 0);
  ASSERT_EQ(launch(words("train.max_steps=2 --resume --allow-change train.seed=7")).status, 0);
  const auto alone = [&](const char* restart, const std::string& more) {
    ::setenv("REDLINE_RESTART", restart, 1);
    const Ran ran = must(words_of("train --device cpu --resume --allow-change train.seed=7") + words(more));
    ::unsetenv("REDLINE_RESTART");
    return ran.out + ran.err;
  };
  const std::string restarted = alone("restart 1 of 5", "train.max_steps=3");
  EXPECT_TRUE(says(restarted, {"train.accumulate = 4 (it was 2)", "parallel.ranks = 1 (it was 2)"}));
  EXPECT_FALSE(says(restarted, "rows now")) << restarted;
  EXPECT_TRUE(says(alone("", "train.max_steps=4 train.accumulate=2"), "a step has 4 rows now, and had 8"));
}

// Whoever makes the file is named as what stopped the run, for all ranks, and the state is saved.
TEST_F(LaunchOnCpu, AFileThatStopsTheRunIsNamed) {
  for (const std::string launcher : {"", "launch -n 2 -- "}) {
    const Path out = folder_ / ("run" + std::to_string(launcher.size()));
    const Words words = words_of(launcher + "train --device cpu") + kTinyModel + words_of("train.max_steps=1000000");
    const pid_t started = start_program(folder_.path(), words + Words{"--out", out.string()});
    for (int i = 0; i < 3000 && !real_files().exists(out / "metrics.jsonl"); ++i) ::usleep(10'000);
    ::usleep(1'200'000);  // it looks once a second
    real_files().replace(out / "stop", "");
    EXPECT_EQ(status_of(started), 3);
    const std::string events = real_files().read(out / "events.jsonl");
    EXPECT_TRUE(says(events, {"stopped by the file " + out.string() + "/stop after step ", "continue with --resume"}))
        << events;
    EXPECT_EQ(events.find("signal"), std::string::npos) << events;
    EXPECT_FALSE(real_files().exists(out / "stop"));
  }
}

TEST_F(LaunchOnCpu, InEightBitsWeightsTravelSoBetweenProcesses) {
  const Words fp8 = kTinyModel + words_of("train.max_steps=2 precision.matmul=fp8 train.accumulate=1");
  std::vector<std::string> weights;
  for (const char* const mode : {"ddp", "zero1", "fsdp"}) {
    const Ran ran = launch(fp8 + Words{fmt::format("parallel.mode={}", mode), "--out", mode});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_TRUE(says(ran.out, {mode, "fp8"}));
    weights.push_back(real_files().read(folder_ / mode / "checkpoints" / io::checkpoint_name(2) / "model.safetensors"));
  }
  EXPECT_TRUE(weights[0] == weights[1]);
  EXPECT_TRUE(weights[0] == weights[2]);
}

TEST_F(LaunchOnCpu, BadInputIsOneSentence) { expect_bad_input(launch({"quik"}), {"quik", "quick"}); }

// Rank 1 alone reads a line that is none, since each rank finds other files under the same path. Before the first step
// the run leaves no folder that would block the mended command; after it, the folder says why the run ended.
TEST_F(LaunchOnCpu, ABadDocumentOfAnotherRankEndsAllAtOnce) {
  const auto lines = [](int bad) {
    std::string text;
    for (int i = 0; i < 400; ++i)
      text += i == bad ? "{\"text\": \n" : fmt::format("{{\"text\": \"line {} {}\"}}\n", i, std::string(40, 'x'));
    return text;
  };
  const Variables token = {{"REDLINE_TOKEN", dist::new_token()}};
  for (const int bad : {1, 390}) {
    const std::string name = fmt::format("bad{}", bad), out = (folder_ / name).string();
    for (const int rank : {0, 1}) {
      const Path folder = folder_ / fmt::format("rank{}", rank);
      real_files().create_folders(folder);
      real_files().replace(folder / "a.jsonl", lines(rank == 1 ? bad : -1));
    }
    const Words words = kTinyModel +
                        words_of(
                            "data.train=/proc/self/cwd/a.jsonl data.tokenizer=bytes "
                            "data.shuffle_buffer=4 data.workers=1 train.max_steps=1000 "
                            "train.eval_every=0 parallel.timeout=600 --out") +
                        Words{out};
    const std::string port = std::to_string(testing::free_port());
    const double begin = steady_seconds();
    const pid_t first = start_rank(0, port, words, token), second = start_rank(1, port, words, token);
    EXPECT_EQ(status_of(second), 2);
    EXPECT_EQ(status_of(first), 2);
    EXPECT_LT(steady_seconds() - begin, 60);
    const std::string said = real_files().read(folder_ / "rank0/stderr");
    EXPECT_TRUE(says(said, {"rank 1 on", "a.jsonl", "data.on_error=skip"}));
    if (bad == 1) {
      EXPECT_FALSE(exists(name)) << said;
    } else {
      EXPECT_TRUE(says(said, {"last checkpoint", "--resume"}));
      EXPECT_TRUE(says(real_files().read(folder_ / name / "events.jsonl"), {"failed", "a.jsonl"}));
    }
  }
}

// While rank 0 waits for rank 1, strangers come: with eight bytes, with frames of every wrong kind and length, with a
// knock and a false proof, and some that say nothing. The run ends with the bits of one that nobody disturbed.
TEST_F(LaunchOnCpu, HostileGuestsChangeNothing) {
  const Words words = kTinyModel + Words{"train.max_steps=3", "checkpoint.every=3"};
  EXPECT_EQ(launch(words + Words{"--out", "undisturbed"}).status, 0);

  const int port = testing::free_port();
  const Variables token = {{"REDLINE_TOKEN", dist::new_token()}};
  const Words disturbed = words + Words{"--out", (folder_ / "disturbed").string()};
  const pid_t first = start_rank(0, std::to_string(port), disturbed, token);
  std::vector<dist::Descriptor> silent;
  int reached = 0;
  for (const double deadline = steady_seconds() + 30; reached == 0 && steady_seconds() < deadline;) {
    std::string problem;
    auto socket = dist::connect_to("127.0.0.1", port, steady_seconds() + 1, problem);
    if (!socket) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    silent.push_back(std::move(*socket));
    for (const std::string& bytes : testing::hostile_bytes()) {
      auto hostile = dist::connect_to("127.0.0.1", port, steady_seconds() + 1, problem);
      ASSERT_TRUE(hostile) << "rank 0 is gone: " << problem;
      ::send(hostile->number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (++reached % 2) silent.push_back(std::move(*hostile));  // others hang up
    }
  }
  ASSERT_GT(reached, 5);
  const pid_t second = start_rank(1, std::to_string(port), disturbed, token);
  EXPECT_EQ(status_of(second), 0) << real_files().read(folder_ / "rank1/stderr");
  EXPECT_EQ(status_of(first), 0) << real_files().read(folder_ / "rank0/stderr");
  EXPECT_TRUE(says(real_files().read(folder_ / "rank0/stderr"), {"without this run's token", "shown out"}));
  for (const char* file :
       {"checkpoints/step_00000003/model.safetensors", "checkpoints/step_00000003/optimizer.safetensors"})
    EXPECT_TRUE(real_files().read(folder_ / "undisturbed" / file) == real_files().read(folder_ / "disturbed" / file))
        << file;
}

// As srun starts them, without --mpi: ranks of one machine share memory, those of several take TCP.
TEST_F(LaunchOnCpu, PlainSrunTrainsOnOneMachineAndOnSeveral) {
  for (const bool several : {false, true}) {
    const std::string port = std::to_string(testing::free_port()), token = dist::new_token();
    pid_t ranks[2];
    for (const int rank : {0, 1}) {
      const std::string number = std::to_string(rank);
      Variables slurm = {{"RANK", ""},
                         {"WORLD_SIZE", ""},
                         {"SLURM_PROCID", number},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "7"},
                         {"SLURM_LOCALID", several ? "0" : number},
                         {"SLURM_NODEID", several ? number : "0"},
                         {"SLURM_TASKS_PER_NODE", several ? "1(x2)" : "2"},
                         {"SLURM_JOB_NODELIST", "localhost"},
                         {"REDLINE_TOKEN", token}};
      ranks[rank] = start_rank(rank, port, kTinyModel + Words{"train.max_steps=1"}, slurm);
    }
    const int status = status_of(ranks[0]), other = status_of(ranks[1]);
    const std::string said = real_files().read(folder_ / "rank0/stderr") + real_files().read(folder_ / "rank1/stderr");
    EXPECT_EQ(status, 0) << said;
    EXPECT_EQ(other, 0) << said;
    EXPECT_TRUE(says(real_files().read(folder_ / "rank0/stdout"), several ? "TCP" : "shared memory"));
  }
}

// No socket but those of the loopback, from the first moment to the last.
TEST_F(LaunchOnCpu, NothingListensOnANetwork) {
  std::string problem;
  {
    const auto open = dist::listen_at("0.0.0.0", testing::free_port(), problem);
    EXPECT_EQ(testing::network_listeners(::getpid()).size(), 1u) << "the test sees nothing";
  }
  const pid_t process = start_program(
      folder_.path(), words_of("launch -n 2 -- train --device cpu") + kTinyModel + Words{"train.max_steps=2"});
  std::set<std::string> seen;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    seen.merge(testing::network_listeners(process));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << real_files().read(folder_ / "stderr");
  EXPECT_TRUE(seen.empty()) << *seen.begin();
}

TEST_F(Launch, InfoNamesTheEngines) {
  const std::string out = run({"info"}).out;
  EXPECT_TRUE(says(out, {"\nmpi ", "\nnccl "}));
}

}  // namespace
}  // namespace redline::cli
