// redline train --resume as it is typed: what was changed since is named with exit 2, until it is said to be meant.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/program.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

namespace fs = std::filesystem;

class ResumeCommand : public ProgramTest {
 protected:
  ResumeCommand() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + " of the text\n";
    write("text.txt", text);
    first_ = run(words_of("train --out a --device cpu train.max_steps=2 train.eval_every=0 train.eval_batches=1 "
                          "optim.warmup_steps=1 data.train=text.txt") +
                 kTinyModel);
    EXPECT_EQ(first_.status, 0) << first_.err;
  }
  Ran resume(const Words& words, const std::string& out = "a") {
    return run(Words{"train", "--resume", "--device", "cpu", "--out", out} + words);
  }
  void edit(const std::string& from, const std::string& to) {
    std::string text = real_files().read(folder_ / "a/config.toml");
    ASSERT_TRUE(says(text, "\n" + from)) << from;
    write("a/config.toml", text.replace(text.find("\n" + from) + 1, from.size(), to));
  }
  Ran first_;
};

TEST_F(ResumeCommand, AnEditedConfigurationIsNamedUntilItIsMeant) {
  edit("beta2 = 0.95", "beta2 = 0.5");
  expect_bad_input(resume({"train.max_steps=3"}),
                   {"a/config.toml is not as the run wrote it", "optim.beta2 = 0.5 where the checkpoint has 0.95",
                    "a/checkpoints/step_00000002/config.toml", "--allow-change"});
  EXPECT_EQ(resume({"train.max_steps=3", "optim.beta2=0.5"}).status, 0);
  edit("beta2 = 0.5", "beta2 = 0.75");
  const Ran allowed = resume({"train.max_steps=4", "--allow-change"});
  EXPECT_EQ(allowed.status, 0) << allowed.err;
  EXPECT_NE((allowed.out + allowed.err).find("resuming with optim.beta2 = 0.75 (it was 0.5)"), std::string::npos)
      << allowed.out << allowed.err;
}

TEST_F(ResumeCommand, ACutConfigurationNamesItsCopy) {
  const std::string text = real_files().read(folder_ / "a/config.toml");
  write("a/config.toml", text.substr(0, text.find("max_steps") + 5));
  expect_bad_input(resume({}), {"a/config.toml cannot be used", "put its copy in its place",
                                "a/checkpoints/step_00000002/config.toml"});
  fs::copy_file(folder_ / "a/checkpoints/step_00000002/config.toml", folder_ / "a/config.toml",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(resume({"train.max_steps=3"}).status, 0);
}

TEST_F(ResumeCommand, ARunThatMovedGoesOnWithItsDataWhereverTheyAre) {
  fs::create_directories(folder_ / "far");
  fs::rename(folder_ / "a", folder_ / "far/run");
  EXPECT_EQ(resume({"train.max_steps=3"}, "far/run").status, 0);
  EXPECT_EQ(resume({"train.max_steps=4", "data.train=./far/../text.txt"}, "far/run").status, 0);
  fs::rename(folder_ / "text.txt", folder_ / "far/words.txt");
  expect_bad_input(resume({"train.max_steps=5"}, "far/run"), {"data.train: there is no", "data.train=PATH"});
  EXPECT_EQ(resume({"train.max_steps=5", "data.train=far/words.txt"}, "far/run").status, 0);
  write("far/words.txt", std::string(4000, 'x'));
  expect_bad_input(resume({"train.max_steps=6"}, "far/run"), {"is not what", "--allow-change"});
  EXPECT_EQ(resume({"train.max_steps=6", "--allow-change"}, "far/run").status, 0);
}

TEST_F(ResumeCommand, ATokenizerThatMovedIsInTheRun) {
  fs::create_directories(folder_ / "t");
  fs::copy_file(Path(testing::source_folder()) / "tests/fixtures/tokenizers/gpt2.tokenizer.json",
                folder_ / "t/tokenizer.json");
  const Ran began = must(words_of("train --out b --device cpu model.vocab=60000 train.max_steps=2 train.eval_batches=1 "
                                  "data.train=text.txt data.eval=text.txt data.tokenizer=t") +
                         kTinyModel);
  fs::rename(folder_ / "t", folder_ / "elsewhere");
  const Ran ran = resume({"train.max_steps=3"}, "b");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.err, "the run goes on with its own copy, b/tokenizer"));
}

TEST_F(ResumeCommand, TheProductsThatTookFp8AreTheRunsOwn) {
  const auto has = [](const Ran& ran, const std::string& words) {
    return (ran.out + ran.err).find(words) != words.npos;
  };
  const Ran there = resume({"train.max_steps=3", "precision.matmul=fp8", "--allow-change"});
  ASSERT_EQ(there.status, 0) << there.err;
  EXPECT_TRUE(has(there, "fp8     12 of 12 products")) << there.err;
  EXPECT_TRUE(has(there, "has no scales of fp8 products")) << there.err;
  EXPECT_NE(real_files().read(folder_ / "a/config.toml").find("\"down/weight\""), std::string::npos);
  const Ran on = resume({"train.max_steps=4"});
  EXPECT_EQ(on.status, 0) << on.err;
  EXPECT_FALSE(has(on, "scales")) << on.err;
  EXPECT_EQ(resume({"train.max_steps=5", "precision.fp8=auto"}).status, 0) << "as it was";
  expect_bad_input(resume({"precision.fp8_products=[\"qkv/forward\"]"}), {"precision.fp8_products", "--allow-change"});
  const Ran fewer = resume({"train.max_steps=6", "precision.fp8_products=[\"qkv/forward\"]", "--allow-change"});
  EXPECT_EQ(fewer.status, 0) << fewer.err;
  EXPECT_TRUE(has(fewer, "1 of 12 products")) << fewer.err;
  EXPECT_TRUE(has(fewer, "has scales of other fp8 products")) << fewer.err;
  const Ran back = resume({"train.max_steps=7", "precision.matmul=bf16", "--allow-change"});
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_FALSE(has(back, "scales")) << back.err;
}

TEST_F(ResumeCommand, GoesOnFromAnOlderCheckpointAndLeavesTheNewer) {
  EXPECT_EQ(resume({"train.max_steps=4"}).status, 0);
  expect_bad_input(resume({"--from-step", "3"}), {"--from-step 3", "it has those of steps 2, 4"});
  expect_bad_input({"train", "--from-step", "2", "--out", "a"}, {"--from-step", "--resume"});
  const Ran back = resume({"train.max_steps=3", "--from-step", "2"});
  EXPECT_EQ(back.status, 0) << back.err;
  EXPECT_NE((back.out + back.err).find("newer checkpoints (step 4) are called step_N.left"), std::string::npos)
      << back.out << back.err;
  EXPECT_EQ(real_files().list(folder_ / "a/checkpoints"),
            (std::vector<std::string>{"step_00000002", "step_00000003", "step_00000004.left"}));
  const std::string rows = real_files().read(folder_ / "a/metrics.jsonl");
  EXPECT_FALSE(says(rows, "\"step\":4,")) << "a row of a step that the run has taken back";
}

// A launcher repeats the words at every restart. The first start that gets there goes back; the rest go on from the
// newest checkpoint.
TEST_F(ResumeCommand, ARestartGoesBackToAStepOnce) {
  const auto start = [&](const char* restart, const Words& words) {
    ::setenv("REDLINE_RESTART", restart, 1);
    const Ran ran = resume(words);
    ::unsetenv("REDLINE_RESTART");
    EXPECT_EQ(ran.status, 0) << ran.err;
    return ran.out + ran.err;
  };
  const auto checkpoints = [&] { return real_files().list(folder_ / "a/checkpoints"); };
  start("", {"train.max_steps=4", "checkpoint.keep=9"});
  start("", {"train.max_steps=5"});
  const std::string first = start("restart 1 of 9", {"train.max_steps=3", "--from-step", "2"});
  EXPECT_TRUE(says(first, "newer checkpoints (steps 4, 5) are called step_N.left")) << "nobody had gone back yet";
  for (const char* steps : {"train.max_steps=6", "train.max_steps=7"}) {
    const std::string next = start("restart 2 of 9", {steps, "--from-step", "2"});
    EXPECT_TRUE(says(next, {"--from-step 2: the run went back there before restart 2 of 9", "newest checkpoint"}));
    EXPECT_FALSE(says(next, "are called step_N.left"));
  }
  EXPECT_EQ(checkpoints(),
            (std::vector<std::string>{"step_00000002", "step_00000003", "step_00000006", "step_00000007"}));

  const std::string typed = start("", {"train.max_steps=4", "--from-step", "2"});
  EXPECT_TRUE(says(typed, "newer checkpoints (steps 3, 6, 7) are called step_N.left")) << typed;
  fs::remove(folder_ / "a/events.jsonl");
  const std::string unknown = start("restart 1 of 9", {"train.max_steps=5", "--from-step", "2"});
  EXPECT_TRUE(says(unknown, "the run went back there before")) << "without events nothing is set aside";
}

TEST_F(ResumeCommand, AllowingAChangeNeedsARunThatGoesOn) {
  expect_bad_input({"train", "--allow-change", "--out", "b"}, {"--allow-change", "--resume"});
}

// What ended before its first step leaves the folder as it found it: the mended command is the same one.
TEST_F(ResumeCommand, ABadDocumentBeforeTheFirstStepBlocksNothing) {
  std::string good;
  for (int i = 0; i < 300; ++i) good += "{\"text\":\"document " + std::to_string(i * i) + " of the text\"}\n";
  const Words train = words_of(
                          "train --out b --device cpu data.train=x.jsonl train.max_steps=1 train.eval_every=0 "
                          "train.eval_tokens=100 data.tokenizer=bytes model.vocab=260") +
                      kTinyModel;
  write("x.jsonl", "?" + good);
  fs::create_directories(folder_ / "b");
  write("b/notes.md", "mine");
  const auto expect_bad_line = [&] {  // the header was shown by then
    const Ran ran = run(train);
    EXPECT_EQ(ran.status, 2);
    EXPECT_TRUE(testing::says(ran.err, "x.jsonl:1"));
  };
  expect_bad_line();
  EXPECT_EQ(real_files().list(folder_ / "b"), (std::vector<std::string>{"notes.md"}));
  fs::remove_all(folder_ / "b");
  expect_bad_line();
  EXPECT_FALSE(fs::exists(folder_ / "b"));
  write("x.jsonl", good);
  EXPECT_EQ(run(train).status, 0);
  // A run that has steps stays, whatever is wrong with the command.
  expect_bad_input(run(train), {"already holds a run", "--resume"});
  EXPECT_TRUE(fs::exists(folder_ / "b/checkpoints/step_00000001"));
}

// A run that is older than a default keeps what it began with, also under the file that its user wrote then.
TEST_F(ResumeCommand, AnOldRunGoesOnAsItBeganWithItsUsersFile) {
  const Path fixture = testing::fixture("run_ed7b3dd");
  fs::copy(fixture / "run", folder_ / "old", fs::copy_options::recursive);
  std::string mine = real_files().read(fixture / "mine.toml");
  const std::string batches = "eval_batches = 1\n";
  write("mine.toml", mine.erase(mine.find(batches), batches.size()));
  const std::string text = "data.train=" + (fixture / "text.txt").string();
  const Ran ran = resume({"mine.toml", text}, "old");
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out + ran.err,
                   {"train.eval_tokens = 0", "checkpoint.minutes = 0", "train.eval_batches = 1", "as it began"}));
  EXPECT_FALSE(says(ran.out + ran.err, "resuming with train")) << ran.out;
  const Ran asked = resume({"mine.toml", text, "train.max_steps=10", "train.eval_tokens=64"}, "old");
  ASSERT_EQ(asked.status, 0) << asked.err;
  EXPECT_TRUE(says(asked.out + asked.err, {"resuming with train.eval_tokens = 64", "cover other tokens"}));
}

}  // namespace
}  // namespace redline::cli
