// The program as a user meets it: exit statuses, and one sentence for everything that is wrong.
#include "cli/commands.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/files.h"
#include "cli/program.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

const Words kTinyRun = kTinyModel + Words{"train.max_steps=4", "train.eval_every=2", "train.eval_batches=1",
                                          "checkpoint.every=2", "optim.warmup_steps=1"};

class Commands : public ProgramTest {
 protected:
  Ran train_tiny(const Words& words) { return run(Words{"train"} + words + kTinyRun); }
};

TEST_F(Commands, HelpNamesEveryCommand) {
  for (const Words& words : {Words{}, Words{"--help"}, Words{"help"}}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_TRUE(says(ran.out, "example"));
    for (const Command& c : commands()) EXPECT_TRUE(says(ran.out, c.name));
  }
}

TEST_F(Commands, EveryCommandIsThereOnce) {
  std::set<std::string_view> names;
  for (const Command& c : commands()) EXPECT_TRUE(names.insert(c.name).second) << c.name;
}

TEST_F(Commands, EveryCommandHasHelpWithAnExample) {
  for (const Command& c : commands()) {
    const Ran ran = run({std::string(c.name), "--help"});
    EXPECT_EQ(ran.status, 0);
    EXPECT_TRUE(says(ran.out, "example"));
    EXPECT_TRUE(says(ran.out, "Usage: redline " + std::string(c.name)));
    EXPECT_EQ(run({"help", std::string(c.name)}).out, ran.out);
  }
}

TEST_F(Commands, Version) { EXPECT_EQ(run({"--version"}).out.rfind("redline ", 0), 0u); }

TEST_F(Commands, UnknownNamesGetTheNearest) {
  expect_bad_input({"trian"}, {"unknown command 'trian'", "did you mean 'train'?"});
  expect_bad_input({"xyzzy"}, {"unknown command 'xyzzy'"});
  expect_bad_input({"--versoin"}, {"did you mean '--version'?"});
  expect_bad_input({"train", "--resum"}, {"no flag '--resum'", "did you mean '--resume'?"});
  expect_bad_input({"eval", "--chekpoint=a"}, {"no flag '--chekpoint'", "did you mean '--checkpoint'?"});
  expect_bad_input({"train", "train.batchsize=3"}, {"train.batchsize", "did you mean 'train.batch_size'?"});
  expect_bad_input({"train", "quik"}, {"quik", "quick"});
  expect_bad_input({"train", "--preset", "quik"}, {"quik", "quick"});
  expect_bad_input({"train", "model.family=lama"}, {"command line: model.family", "qwen3", "did you mean \"llama\"?"});
}

TEST_F(Commands, FlagsFromElsewhereAreKeysHere) {
  expect_bad_input({"train", "--lr", "1e-3"}, {"no flag '--lr'", "keys are given as optim.lr=VALUE"});
  // Another trainer's flag with its value, as docs/coming_from.md shows it.
  expect_bad_input({"train", "quick", "--use_zero1=False"}, {"no flag '--use_zero1'", "'parallel.mode=ddp'"});
  expect_bad_input({"train", "quick", "--compile_mode", "max-autotune"}, {"'kernels.tuning=max'"});
  expect_bad_input({"train", "quick", "--use_fp8", "--fused"}, {"'precision.matmul=fp8'"});
  expect_bad_input({"train", "quick", "--fused"}, {"nothing to set", "update"});
  expect_bad_input({"data", "stats", "ping", "--crop-size", "1024"}, {"no flag '--crop-size'", "'--seq-len N'"});
  expect_bad_input({"train", "--hidden-size=64"}, {"no flag '--hidden-size'", "model.hidden=VALUE"});
  expect_bad_input({"plan", "--train.seq_len", "64"}, {"train.seq_len=VALUE"});
}

// Every flag of llm.c that docs/coming_from.md has beside a name.
TEST_F(Commands, FlagsOfLlmCAreAnsweredAsThePageSays) {
  std::istringstream page(real_files().read(Path(testing::source_folder()) / "docs" / "coming_from.md"));
  std::size_t flags = 0;
  for (std::string line; std::getline(page, line);) {
    const std::size_t begin = line.find(" | `-"), end = line.find("` | ", begin + 5);
    if (!line.starts_with("| `") || begin == line.npos || end == line.npos) continue;
    const std::string here = line.substr(end + 4);
    std::istringstream cell(line.substr(begin + 3, end - begin - 3));  // `-pn`, `-pg
    for (std::string flag; cell >> flag;) {
      std::erase_if(flag, [](char c) { return c == '`' || c == ','; });
      if (flag == "-h" || flag == "-y") continue;  // help; a switch here as there
      const std::string ours = here.starts_with("nothing") ? "nothing to set" : here.substr(1, here.find('`', 1) - 1);
      expect_bad_input({"train", "quick", flag, "1"}, {fmt::format("no flag '{}'; llm.c's ", flag), ours});
      ++flags;
    }
  }
  EXPECT_GT(flags, 25u);
  expect_bad_input({"train", "quick", "-y", "1"}, {"no flag '-y'", "'--resume'"});
  expect_bad_input({"train", "quick", "-z", "3"}, {"'parallel.mode=fsdp'"});
}

TEST_F(Commands, WhatSteersATerminalIsNotPassedOn) {
  const auto expect_shown = [&](const Ran& ran) {
    EXPECT_FALSE(says(ran.err, "\x1b"));
    EXPECT_TRUE(says(ran.err, "\\x1b"));
  };
  expect_shown(run({"train", "data.train=\x1b[2Jnothing.txt", "--out", "a"}));
  expect_shown(run({"train", "\x1b]0;title\x07=1"}));
  expect_shown(run({"\x1b[31mtrain"}));
  write("keys.toml", "\"\\u001b[2J\" = 1\n");
  expect_shown(run({"config", "keys.toml"}));
}

// In every state of too little memory the program ends, also where its libraries do not get their buffers: addresses
// (ulimit -v), and of those what can be written (ulimit -d).
TEST_F(Commands, EndsUnderAnyLimitOfMemory) {
  constexpr std::int64_t kStep = 16 << 10, kMost = 4 << 20;
  EXPECT_EQ(train_tiny({"--out", "run", "train.max_steps=1", "--device", "cpu"}).status, 0);
  for (const char kind : {'v', 'd'}) {
    const auto status_of = [&](std::int64_t kib, const std::string& words) {
      const std::string limited =
          fmt::format("cd {} && ulimit -{} {} && exec timeout -s KILL 60 {} {} >/dev/null 2>&1",
                      quoted(folder_.path().string()), kind, kib, quoted(testing::program()), words);
      const int status = std::system(limited.c_str());
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      // `timeout` ends with the signal that it sends.
      EXPECT_TRUE(code != 137 && code != 1000 + SIGKILL) << words << " hangs with ulimit -" << kind << ' ' << kib;
      return code;
    };
    std::int64_t kib = kStep;
    while (kib < kMost && status_of(kib, "--version") != 0 && !HasFailure()) kib += kStep;
    if (kib >= kMost) GTEST_SKIP() << "not even the libraries fit into 4 GiB";
    for (int more = 0; more < 6 && !HasFailure(); ++more) {
      status_of(kib + more * 2 * kStep, "train train.max_steps=1 train.eval_batches=1 --device cpu --out limited");
      // Its first product is inside attention: a prompt of one token has too few rows for OpenBLAS elsewhere.
      status_of(kib + more * kStep, "sample --checkpoint run --prompt a --device cpu --tokens 2");
    }
  }
}

TEST_F(Commands, ValuesOfFlags) {
  expect_bad_input({"train", "--out"}, {"--out needs a value"});
  expect_bad_input({"train", "--out", "--resume"}, {"--out needs a value", "--resume"});
  expect_bad_input({"train", "--resume"}, {"--resume needs", "--out"});
  // A folder that is misspelt is no reason to train the built-in model.
  expect_bad_input({"train", "--resume", "--out", "rnu", "train.max_steps=9"}, {"no run in rnu", "--resume"});
  EXPECT_FALSE(exists("rnu"));
  expect_bad_input({"train", "--resume=yes"}, {"--resume takes no value"});
  expect_bad_input({"profile", "--steps", "many"}, {"--steps takes a whole number", "'many'"});
  expect_bad_input({"profile", "--steps", "0"}, {"--steps", "'0'"});
  expect_bad_input({"sample", "--checkpoint", "x", "--prompt", "y", "--temperature", "-1"}, {"--temperature", "'-1'"});
  expect_bad_input({"train", "--device", "gpu", "--out", "a"}, {"--device gpu"});
  expect_bad_input({"info", "now"}, {"'now'"});
  expect_bad_input({"verify"}, {"CASE_DIR"});
  expect_bad_input({"eval"}, {"--checkpoint"});
  expect_bad_input({"sample", "--checkpoint", "x"}, {"--prompt"});
}

TEST_F(Commands, BadConfigurations) {
  expect_bad_input({"train", "model.layers=abc"}, {"model.layers", "integer", "abc"});
  expect_bad_input({"train", "model.layers=0"}, {"model.layers", "0"});
  expect_bad_input({"train", "missing.toml"}, {"missing.toml", "no such file"});
  expect_bad_input({"train", "=5"}, {"command line"});
  expect_bad_input({"train", "model.head_dim=7"}, {"model.head_dim"});
  expect_bad_input({"train", "quick", "ping-95m"}, {"ping-95m", "key=value"});
  expect_bad_input({"train", "--device", "cpu", "precision.matmul=fp8", "precision.fp8_products=[\"qkv/sideways\"]"},
                   {"precision.fp8_products", "qkv/sideways", "LINEAR/forward", "gate_up"});
  write("bad.toml", "[train]\nbatch_size = 4\nseq_length = 3\n");
  expect_bad_input({"config", "bad.toml"}, {"bad.toml:3", "train.seq_length", "train.seq_len"});
  write("broken.toml", "[train\n");
  expect_bad_input({"config", "broken.toml"}, {"broken.toml:1"});
}

TEST_F(Commands, BadFoldersAndData) {
  expect_bad_input({"train", "model.vocab=100", "--out", "a"}, {"model.vocab", "100", "267"});
  EXPECT_FALSE(exists("a"));
  expect_bad_input({"train", "data.train=nothing.txt", "--out", "a"}, {"data.train", "nothing.txt"});
  real_files().create_folders(folder_ / "empty");
  expect_bad_input({"verify", "empty"}, {"empty", "config.json"});
  expect_bad_input({"verify", "nowhere"}, {"nowhere"});
  expect_bad_input({"eval", "--checkpoint", "empty"}, {"empty"});
  expect_bad_input({"sample", "--checkpoint", "nowhere", "--prompt", "x"}, {"nowhere"});
}

TEST_F(Commands, VerifySaysWithinOrOutside) {
  const std::string fixtures = testing::source_folder() + "/tests/fixtures/";
  const Ran good = run({"verify", fixtures + "llama-mha"});
  EXPECT_EQ(good.status, 0) << good.out << good.err;
  EXPECT_TRUE(says(good.out, "within tolerance"));

  // The weights of another model of the same shapes are not the oracle's.
  std::filesystem::copy(fixtures + "llama-mha", folder_ / "case");
  std::string weights = real_files().read(folder_ / "case/model.safetensors");
  for (std::size_t i = weights.size() - 4096; i < weights.size(); i += 4) weights[i + 3] ^= '\x80';  // signs
  real_files().replace(folder_ / "case/model.safetensors", weights);
  const Ran bad = run({"verify", "case", "--json"});
  EXPECT_EQ(bad.status, 1) << bad.err;
  const auto json = nlohmann::json::parse(bad.out);
  EXPECT_EQ(json.at("within"), false);
  EXPECT_GT(json.at("tensors").size(), 20u);
}

TEST_F(Commands, InfoAndConfigPrintDocuments) {
  const auto info = nlohmann::json::parse(run({"info", "--json"}).out);
  EXPECT_TRUE(info.at("cpu").at("usable").get<bool>());
  EXPECT_TRUE(info.at("cuda").contains("problem"));
  const Ran config = run({"config", "quick", "train.batch_size=3"});
  EXPECT_EQ(config.status, 0);
  EXPECT_TRUE(says(config.out, "batch_size = 3"));
  write("again.toml", config.out);
  EXPECT_EQ(run({"config", "again.toml"}).out, config.out);
  EXPECT_NE(run({"config", "--keys"}).out.find("train.seq_len"), std::string::npos);
  EXPECT_NE(run({"config", "--markdown"}).out.find("| `train.seq_len` |"), std::string::npos);
  EXPECT_NE(run({"config", "--presets"}).out.find("quick"), std::string::npos);
}

TEST_F(Commands, OutputThatCannotBeWritten) {
  EXPECT_EQ(run({"config"}, ">&-").status, 0);
  EXPECT_EQ(run({"config", "--keys"}, "| true").status, 0);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Ran full = run({"config"}, ">/dev/full");
  EXPECT_EQ(full.status, 1);
  EXPECT_TRUE(says(full.err, "standard output"));
}

TEST_F(Commands, ARunFromTrainingToText) {
  const Ran trained = train_tiny({"--out", "a"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_TRUE(says(trained.out, "step 4/4"));
  const std::string metrics = real_files().read(folder_ / "a/metrics.jsonl");
  EXPECT_TRUE(metrics.starts_with("{\"step\":0,")) << "the evaluation before the first step";
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 1 + 4);

  expect_bad_input(train_tiny({"--out", "a"}), {"already holds a run", "--resume"});
  const Ran resumed = must({"train", "--resume", "--out", "a", "train.max_steps=5"});
  EXPECT_TRUE(says(resumed.out, "step 5/5"));
  must({"train", "--resume", "--out", "a", "train.max_steps=5"});  // done already
  EXPECT_EQ(real_files().read(folder_ / "a/metrics.jsonl").substr(0, metrics.size()), metrics);

  const auto eval = nlohmann::json::parse(run({"eval", "--checkpoint", "a", "--json"}).out);
  const std::string rows = real_files().read(folder_ / "a/metrics.jsonl");
  const auto last = nlohmann::json::parse(rows.substr(rows.rfind('\n', rows.size() - 2) + 1));
  EXPECT_EQ(eval.at("loss"), last.at("eval_loss"));
  write("text.txt", std::string(5000, 'x'));
  const auto text =
      nlohmann::json::parse(run({"eval", "--checkpoint", "a", "--data", "text.txt", "--batches", "0", "--json"}).out);
  EXPECT_EQ(text.at("bytes"), 4999);  // all but the first, which nothing predicts
  EXPECT_NEAR(text.at("bits_per_byte").get<double>() * std::log(2.0) * 4999, text.at("loss").get<double>() * 5000,
              1e-6);
  EXPECT_EQ(text.at("tokens"), 5001);

  const Words sample = {"sample", "--checkpoint", "a", "--prompt", "<begin>10.", "--tokens", "5", "--seed", "7"};
  EXPECT_EQ(run(sample).out.rfind("<begin>10.", 0), 0u);
  EXPECT_EQ(run(sample).out, run(sample).out);
}

TEST_F(Commands, ADryRunWritesNothing) {
  const Ran ran = train_tiny({"--out", "a", "--dry-run"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, {"parameters", "a checkpoint takes "}));
  EXPECT_FALSE(exists("a"));
}

TEST_F(Commands, WhatDoesNotFitIsToldBeforeTheRun) {
  const std::string keys = " --device cpu --preset llama-1.36b data.train=ping train.batch_size=4096";
  const Words parts = {"the run needs", "GiB free of", "train.batch_size = ", "docs/monitoring.md#out-of-memory"};
  expect_bad_input(run_line("train --out a" + keys), parts);
  const Ran dry = run_line("train --dry-run --out a" + keys);
  EXPECT_EQ(dry.status, 0);
  EXPECT_TRUE(says(dry.out, "memory  "));  // by kind
  for (const std::string& part : parts) EXPECT_TRUE(says(dry.out, part));
  expect_bad_input(run_line("profile" + keys), parts);
  // Also where the loader has no room for so large a batch either.
  expect_bad_input(run_line("train --out a --device cpu data.workers=1 train.batch_size=1048576"), parts);
  for (const char* left : {"a", "redline-trace.json"}) EXPECT_FALSE(exists(left)) << left;
}

// Whatever trains asks for data; whatever measures takes random tokens, and says so.
TEST_F(Commands, DataThatNobodyNamedAreAskedFor) {
  write("own.toml", "[model]\nlayers = 1\nhidden = 32\nheads = 2\nffn = 48\n[train]\nmax_steps = 2\nseq_len = 64\n");
  for (const std::string config : {"own.toml", "gqa-180m"}) {
    expect_bad_input({"train", config, "--out", "a", "--device", "cpu"}, {"data.train", "data.train=texts/", "ping"});
    expect_bad_input({"sweep", config, "--grid", "optim.lr=1e-3,2e-3", "--out", "a", "--device", "cpu"},
                     {"data.train"});
  }
  EXPECT_FALSE(exists("a"));
  const Ran dry = must({"train", "own.toml", "--dry-run", "--device", "cpu"});
  EXPECT_TRUE(says(dry.out, {"random tokens", "train will ask for it"}));
  write("epochs.toml", "train.epochs = 2\n");
  EXPECT_TRUE(says(must({"train", "epochs.toml", "--dry-run", "--device", "cpu"}).out, {"train.epochs", "1000 steps"}));
  const Ran profiled = must({"profile", "own.toml", "--steps", "1", "--device", "cpu"});
  EXPECT_TRUE(says(profiled.err, {"data.train", "random tokens"}));
  must({"plan", "own.toml", "--card", "h200"});
}

// Weights, text, and nothing else said: the run has a recipe made for going on, says why, and learns.
TEST_F(Commands, GoingOnFromWeightsNeedsNoRecipe) {
  ASSERT_EQ(train_tiny({"--out", "start", "--device", "cpu"}).status, 0);
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(150 + i % 70, 'y'));
  write("more.jsonl", lines);
  const Ran tuned = must({"train", "model.init_from=start/", "data.train=more.jsonl", "data.tokenizer=bytes",
                          "train.seq_len=64", "--device", "cpu"});
  EXPECT_TRUE(says(tuned.out, {"optim.lr = 3e-4", "cube root", "train.epochs = 1", "16384 tokens",
                               "train.epochs: ", "rate    AdamW, rate 3e-4 after 1 step of warm-up"}));
  EXPECT_FALSE(says(tuned.out, "never reaches")) << tuned.out;
  const std::vector<std::string> runs = real_files().list(folder_ / "runs");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].rfind("start-20", 0), 0u) << runs[0];
  const Path run_folder = folder_ / "runs" / runs[0];
  EXPECT_TRUE(real_files().exists(run_folder / "epoch.json"));
  std::vector<double> held_out;
  std::istringstream metrics(real_files().read(run_folder / "metrics.jsonl"));
  for (std::string row; std::getline(metrics, row);)
    if (const auto json = nlohmann::json::parse(row); json.contains("eval_loss"))
      held_out.push_back(json.at("eval_loss").get<double>());
  ASSERT_EQ(held_out.size(), 2u) << "before the first step, and at the end";
  EXPECT_LT(held_out[1], held_out[0] - 0.005);
  expect_bad_input({"train", "model.init_from=start", "--out", "none", "--device", "cpu"}, {"data.train"});
}

TEST_F(Commands, ARunWithoutOutGetsAFolderOfItsOwn) {
  EXPECT_EQ(train_tiny({}).status, 0);
  EXPECT_EQ(train_tiny({}).status, 0);
  const std::vector<std::string> runs = real_files().list(folder_ / "runs");
  ASSERT_EQ(runs.size(), 2u);
  for (const std::string& name : runs) EXPECT_EQ(name.rfind("quick-20", 0), 0u) << name;
}

TEST_F(Commands, ProfilePrintsATableAndWritesATrace) {
  const Words words = {"profile", "--steps", "2", "--trace", "t.json", "--json"};
  const auto json = nlohmann::json::parse(run(words + kTinyRun).out);
  EXPECT_GT(json.at("step_ms").get<double>(), 0);
  EXPECT_GT(json.at("nodes").size(), json.at("kinds").size());
  EXPECT_FALSE(nlohmann::json::parse(real_files().read(folder_ / "t.json")).at("traceEvents").empty());
}

// What a shell makes of <(...): a pipe that was named is read, unlike one that lies in a folder.
TEST_F(Commands, AConfigurationMayComeThroughAPipe) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(folder_ / "pipe") << "[train]\nseq_len = 77\nmax_steps = 5\n"; });
  const Ran ran = run({"config", "pipe"});
  writer.join();
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, "seq_len = 77"));
}

// A signal lets the step end, saves and says so with status 3; --resume goes on from there.
TEST_F(Commands, ASignalSavesTheRun) {
  const pid_t child =
      start_program(folder_.path(), Words{"train", "--out", "a"} + kTinyRun +
                                        Words{"train.max_steps=100000000", "checkpoint.every=0", "train.eval_every=0"});
  ASSERT_GT(child, 0);
  for (int i = 0; i < 6000 && !(exists("a/metrics.jsonl") && real_files().size(folder_ / "a/metrics.jsonl") > 0); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(real_files().list(folder_ / "a/checkpoints").size(), 1u);
  const Ran resumed = run({"train", "--resume", "--out", "a", "--dry-run"});
  EXPECT_TRUE(says(resumed.out, "resuming after step")) << resumed.err;
}

}  // namespace
}  // namespace redline::cli
