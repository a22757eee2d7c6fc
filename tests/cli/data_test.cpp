// redline data as a user meets it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/program.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

class DataCommand : public ProgramTest {};

TEST_F(DataCommand, PreparesAndTrains) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"body\":\"a line of text, the next one follows\"}\n";
  write("in.jsonl", lines + "broken\n");
  const Words words =
      words_of("data prepare --tokenizer bytes --out shards --text-field body --threads 2 --val-fraction 0.1 in.jsonl");
  const Words skip = words + words_of("--on-error skip --json");
  expect_bad_input(words, {"in.jsonl:201:1:", "--on-error skip"});
  EXPECT_FALSE(exists("shards"));
  const auto json = nlohmann::json::parse(must(skip).out);
  EXPECT_EQ(json["documents"], 200);
  EXPECT_EQ(json["tokens"], 200 * 37);
  EXPECT_EQ(json["skipped"]["malformed"], 1);
  EXPECT_EQ(json["train"]["documents"].get<int>() + json["val"]["documents"].get<int>(), 200);
  must(words_of("train data.train=shards model.vocab=257 train.max_steps=2 optim.warmup_steps=1 --out run") +
       kTinyModel);
  expect_bad_input(skip, {"shards", "the folder is not empty"});
}

TEST_F(DataCommand, SummaryForPeople) {
  write("a.txt", "one--two----");
  const Ran good = must({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "--separator=--", "a.txt"});
  for (const std::string part :
       {"2 documents, 8 tokens", "train  2 documents", "val    0 documents", "1 empty document"})
    EXPECT_TRUE(says(good.out, part));
}

TEST_F(DataCommand, BadWords) {
  write("a.txt", "x");
  expect_bad_input({"data", "prepar"}, {"data prepare"});
  expect_bad_input({"data", "prepare", "--out", "o", "a.txt"}, {"--tokenizer"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "a.txt"}, {"--out"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o"}, {"INPUT"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "b.txt"}, {"b.txt"});
  expect_bad_input({"data", "prepare", "--tokenizer", "nothing.json", "--out", "o", "a.txt"}, {"--tokenizer"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "--on-error", "go", "a.txt"},
                   {"--on-error", "'go'"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "--end-token", "x", "a.txt"},
                   {"--end-token", "'x'"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "--separator", "\\q", "a.txt"},
                   {"--separator"});
  expect_bad_input({"data", "prepare", "--tokenizer", "bytes", "--out", "o", "--val-fraction", "2", "a.txt"},
                   {"--val-fraction"});
  EXPECT_FALSE(exists("o"));
}

// The input takes seconds, and the signal comes when the first shard is there.
TEST_F(DataCommand, SignalsLeaveNothingAndExitThree) {
  std::string lines;
  for (int i = 0; i < 400'000; ++i)
    lines += "{\"text\":\"a line of text, the next one follows; and so on for long\"}\n";
  write("in.jsonl", lines);
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child =
        start_program(folder_.path(), words_of("data prepare --tokenizer bytes --threads 1 --out o in.jsonl in.jsonl "
                                               "in.jsonl in.jsonl in.jsonl in.jsonl in.jsonl in.jsonl"));
    ASSERT_GE(child, 0);
    for (int i = 0; i < 2000 && !exists("o.partial/folder/train-00000.tokens"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_EQ(::kill(child, signal), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 3);
    EXPECT_FALSE(exists("o") || exists("o.partial"));
  }
}

}  // namespace
}  // namespace redline::cli
