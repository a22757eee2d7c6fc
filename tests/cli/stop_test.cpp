// Ctrl-C and kill as a user meets them: in commands that have nothing on the disk before their end exit status 3, one
// sentence, nothing cut in two; in a run words at once, and an end that does not wait for a step of minutes.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "cli/program.h"
#include "io/safetensors.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

class Stop : public ProgramTest {
 protected:
  // Starts the program with its streams in files, and returns when it listens to signals.
  void start(const Words& words, int out = -1) {
    child_ = start_program(folder_.path(), words, out, with_int_);
    ASSERT_GE(child_, 0);
    for (int i = 0; i < 1500 && !listens(); ++i) pause();
  }
  void signal(int number) { ASSERT_EQ(::kill(child_, number), 0); }
  Ran wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
            exists("stdout") ? real_files().read(folder_ / "stdout") : "", real_files().read(folder_ / "stderr")};
  }
  // Both signals end it, with nothing but the sentence.
  void expect_stopped(const Words& words, const std::string& sentence) {
    for (const int number : {SIGINT, SIGTERM}) {
      start(words);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // to be in the middle of something
      signal(number);
      const Ran ran = wait();
      EXPECT_EQ(ran.status, kStopped) << words[0];
      EXPECT_EQ(ran.err, sentence + "\n");
      EXPECT_EQ(ran.out, "");
    }
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

  pid_t child_ = -1;
  void (*with_int_)(int) = SIG_DFL;  // what the program is started with

 private:
  bool listens() const {
    std::ifstream status("/proc/" + std::to_string(child_) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
    return false;
  }
};

TEST_F(Stop, DataStats) {
  expect_stopped({"data", "stats", "ping", "--documents", "10000000", "--seq-len", "1024", "--html", "page.html"},
                 "stopped; nothing was written");
  EXPECT_FALSE(exists("page.html") || exists("page.html.partial"));
}

// What is known is shown.
TEST_F(Stop, LadderAndTuneShowWhatTheyKnow) {
  for (const char* command : {"ladder", "tune"}) {
    start({command, "--device", "cpu", "--seconds", "1000"});
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    signal(SIGINT);
    const Ran ran = wait();
    EXPECT_EQ(ran.status, kStopped) << ran.err;
    EXPECT_TRUE(says(ran.out, {"stopped: ", "real tokens/s"}));
    EXPECT_FALSE(exists("quick.tuned.toml"));
  }
}

TEST_F(Stop, TokenizerTrain) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i * 7919) + " words of a line that is followed by others\n";
  write("in.txt", text);
  Words words = {"tokenizer", "train", "--vocab-size", "50000", "--out", "t.json"};
  words.insert(words.end(), 100, "in.txt");
  expect_stopped(words, "stopped; no tokenizer was written");
  EXPECT_FALSE(exists("t.json") || exists("t.json.partial"));
}

// In one call into a library, and where input is waited for.
TEST_F(Stop, Tokenize) {
  const std::string sentence = "stopped; the output ends before the input does";
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "the words of a line " + std::to_string(i) + "\n";
  write("in.txt", text);
  expect_stopped({"tokenize", "--tokenizer", kFixtures + "tokenizers/pieces.model", "in.txt"}, sentence);
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_stopped({"tokenize", "--tokenizer", "bytes", "pipe"}, sentence);
  expect_stopped({"tokenize", "--tokenizer", "bytes", "--decode", "pipe"}, sentence);
}

// Also where the signal comes twice at once, as `timeout` sends it.
TEST_F(Stop, TokenizePrintsWholeLines) {
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += "{\"text\":\"a line of text\"}\n";
  write("in.jsonl", lines);
  for (const int times : {1, 2}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    start({"tokenize", "--tokenizer", "bytes", "--jsonl", "in.jsonl"}, ends[1]);
    ::close(ends[1]);
    std::string out(1, '\0');
    ASSERT_EQ(::read(ends[0], out.data(), 1), 1);  // it prints, more than a pipe takes
    for (int i = 0; i < times; ++i) {
      signal(SIGINT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is heard
    }
    for (std::string piece(1 << 16, '\0');;) {
      const ssize_t got = ::read(ends[0], piece.data(), piece.size());
      if (got <= 0) break;
      out.append(piece, 0, static_cast<std::size_t>(got));
    }
    ::close(ends[0]);
    const Ran ran = wait();
    EXPECT_EQ(ran.status, kStopped);
    EXPECT_EQ(ran.err, "stopped; the output ends before the input does\n");
    EXPECT_TRUE(out.ends_with("]}\n")) << out.substr(out.size() - 30);
    EXPECT_LT(std::ranges::count(out, '\n'), 100'000);
  }
}

// A script starts what it leaves behind with Ctrl-C ignored.
TEST_F(Stop, WhatIsIgnoredStaysSo) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  with_int_ = SIG_IGN;
  start({"tokenize", "--tokenizer", "bytes", "pipe"});
  signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0);
  signal(SIGTERM);
  EXPECT_EQ(wait().status, kStopped);
}

TEST_F(Stop, Eval) {
  expect_stopped(
      {"eval", "--device", "cpu", "--checkpoint", kFixtures + "llama-mha", "--data", "ping", "--batches", "1000000"},
      "stopped; there is no result");
}

TEST_F(Stop, Verify) {
  const Path from = kFixtures + "llama-mha";
  std::filesystem::create_directory(folder_ / "case");
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(from / name, folder_ / "case" / name);
  // More training steps than anyone waits for.
  const io::SafetensorsReader oracle(from / "oracle.safetensors");
  const std::vector<float> many(1'000'000);
  std::vector<io::TensorToWrite> tensors;
  for (const io::StoredTensor& t : oracle.tensors()) {
    const bool steps = t.name == "train_losses" || t.name == "grad_norms";
    if (steps)
      tensors.push_back({t.name, DType::f32, {std::ssize(many)}, std::as_bytes(std::span(many))});
    else
      tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
  }
  io::write_safetensors(real_files(), folder_ / "case/oracle.safetensors", tensors, oracle.metadata());
  expect_stopped({"verify", "--device", "cpu", "case"}, "stopped; there is no result");
}

TEST_F(Stop, Profile) {
  expect_stopped({"profile", "--device", "cpu", "--steps", "100000", "model.layers=1", "model.hidden=32",
                  "model.heads=2", "model.head_dim=16", "model.ffn=48"},
                 "stopped; nothing was written");
  EXPECT_FALSE(exists("redline-trace.json") || exists("redline-trace.json.partial"));
}

TEST_F(Stop, Doctor) {
  expect_stopped({"doctor", "--device", "cpu", "--steps", "100000", "model.layers=1", "model.hidden=32",
                  "model.heads=2", "model.head_dim=16", "model.ffn=48"},
                 "stopped; nothing was found out");
}

TEST_F(Stop, Plan) {
  expect_stopped({"plan", "--card", "h200", "model.layers=500", "train.batch_size=1024", "optim.lr=1e-3"},
                 "stopped; there is no plan");
}

TEST_F(Stop, Peaks) { expect_stopped({"peaks", "--device", "cpu"}, "stopped; there is no result"); }

// It waits for the command that it has started, and leaves no folder.
TEST_F(Stop, Check) {
  std::filesystem::create_directory(folder_ / "tmp");
  ::setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
  expect_stopped({"check", "--device", "cpu"}, "stopped; there is no result");
  ::unsetenv("TMPDIR");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp"));
}

TEST_F(Stop, Report) {
  std::string rows;
  for (int i = 1; i <= 100'000; ++i)
    rows += "{\"step\":" + std::to_string(i) + ",\"time\":1700000000,\"loss\":3.0,\"step_ms\":100,\"tokens\":1000}\n";
  std::filesystem::create_directory(folder_ / "run");
  write("run/metrics.jsonl", rows);
  Words words = {"report"};
  words.insert(words.end(), 50, "run");
  expect_stopped(words, "stopped; nothing was written");
  EXPECT_FALSE(exists("run/report.html") || exists("run/report.html.partial"));
}

// Rows so long that a single attention takes minutes.
class StopTraining : public Stop {
 protected:
  void start_long_step(const char* eval_every) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) text += "the words of a line " + std::to_string(i) + "\n";
    write("long.txt", text);
    ::setenv("REDLINE_THREADS", "1", 1);  // it takes long on any machine
    start({"train", "--device", "cpu", "--out", "run", "data.train=long.txt", "data.eval=long.txt",
           "train.seq_len=200000", "train.batch_size=1", "train.accumulate=1", "model.layers=2", "model.hidden=32",
           "model.heads=2", "model.head_dim=16", "model.ffn=48", std::string("train.eval_every=") + eval_every});
    for (int i = 0; i < 5000 && !exists("run/events.jsonl"); ++i) pause();
    std::this_thread::sleep_for(std::chrono::seconds(2));  // to be in the middle of it
    ASSERT_EQ(::waitpid(child_, nullptr, WNOHANG), 0);
  }
  // Under load as well; the step itself takes far longer.
  Ran wait_briefly() {
    for (int i = 0; i < 5000; ++i, pause())
      if (siginfo_t info{};
          ::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0)
        return wait();
    ::kill(child_, SIGKILL);
    return wait();
  }
  bool said(const std::string& words) {
    for (int i = 0; i < 1000; ++i, pause())
      if (real_files().read(folder_ / "stderr").find(words) != std::string::npos) return true;
    return false;
  }
};

TEST_F(StopTraining, ATermOrAHangUpDropsTheStep) {
  for (const int number : {SIGTERM, SIGHUP}) {
    start_long_step("0");
    signal(number);
    const Ran ran = wait_briefly();
    EXPECT_EQ(ran.status, kStopped);
    EXPECT_EQ(ran.err,
              "stopping: the unfinished step is dropped and the state before it saved; again: without saving\n");
    EXPECT_TRUE(says(ran.out, "stopped by signal " + std::to_string(number) + " before the first step in "));
    EXPECT_TRUE(says(ran.out, "; step 1 was left unfinished; continue with --resume --out run"));
    real_files().remove_all(folder_ / "run");
  }
}

TEST_F(StopTraining, CtrlCSaysSoAtOnceAndAgainDropsTheStep) {
  start_long_step("0");
  signal(SIGINT);
  EXPECT_TRUE(said("stopping after this step; again: at once\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(::waitpid(child_, nullptr, WNOHANG), 0);
  signal(SIGINT);
  const Ran ran = wait_briefly();
  EXPECT_EQ(ran.status, kStopped);
  EXPECT_TRUE(says(ran.out, "stopped by signal 2 before the first step"));
}

TEST_F(StopTraining, CtrlCLeavesAnEvaluation) {
  start_long_step("1");
  signal(SIGINT);
  const Ran ran = wait_briefly();
  EXPECT_EQ(ran.status, kStopped);
  EXPECT_TRUE(says(ran.out, {"stopped by signal 2 before the first step in ", "0 tokens; continue with --resume"}));
  expect_bad_input({"train", "--resume", "run"}, {"--resume needs the run to continue: --out run"});
  expect_bad_input({"train", "--resume"}, {"--out DIR"});
}

TEST_F(StopTraining, AnEvaluationThatIsLeftAfterAStepIsTold) {
  const Words words = {"train",
                       "quick",
                       "--device",
                       "cpu",
                       "--out",
                       "run",
                       "train.max_steps=1",
                       "train.batch_size=1",
                       "train.seq_len=64",
                       "train.eval_every=0",
                       "train.eval_tokens=0"};
  start(words);
  ASSERT_EQ(wait().status, 0);
  ::setenv("REDLINE_THREADS", "1", 1);
  start(
      {"train", "--resume", "--out", "run", "train.max_steps=9", "train.eval_every=2", "train.eval_tokens=100000000"});
  const auto resumed = [&] {
    return real_files().read(folder_ / "run/events.jsonl").find("\"first_step\":1") != std::string::npos;
  };
  for (int i = 0; i < 5000 && !resumed(); ++i) pause();
  std::this_thread::sleep_for(std::chrono::seconds(1));  // to be in the middle of it
  signal(SIGTERM);
  const Ran ran = wait_briefly();
  EXPECT_EQ(ran.status, kStopped);
  EXPECT_TRUE(says(ran.out, {"after step 2", "its evaluation was left, and is not made up for; continue"})) << ran.out;
}

TEST_F(Stop, Sample) {
  start({"sample", "--device", "cpu", "--checkpoint", kFixtures + "llama-mha", "--tokenizer", "ping", "--prompt", "1",
         "--tokens", "1000000"});
  for (int i = 0; i < 1500 && real_files().size(folder_ / "stdout") < 100; ++i) pause();
  signal(SIGINT);
  const Ran ran = wait();
  EXPECT_EQ(ran.status, kStopped);
  EXPECT_TRUE(ran.err.ends_with("stopped\n")) << ran.err;
  EXPECT_GE(ran.out.size(), 100u);  // what was written stays
}

}  // namespace
}  // namespace redline::cli
