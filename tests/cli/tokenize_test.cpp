// redline tokenize and redline tokenizer train as a user meets them.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "cli/program.h"
#include "io/json.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

class TokenizeTest : public ProgramTest {
 protected:
  Ran run(const std::string& line, std::string_view input = "") { return run_line(line, input); }
  void expect_bad_input(const std::string& line, const std::string& part, std::string_view input = "") {
    ProgramTest::expect_bad_input(run(line, input), {part});
  }
  const std::string gpt2_ =
      fmt::format("--tokenizer '{}/tests/fixtures/tokenizers/gpt2.tokenizer.json'", testing::source_folder());
};

TEST_F(TokenizeTest, IdsOfEachFileOnOneLineAndBack) {
  EXPECT_EQ(run("tokenize --tokenizer bytes", "ab\n").out, "97 98 10\n");
  EXPECT_EQ(run("tokenize --tokenizer bytes --decode", "97 98 10\n").out, "ab\n");
  EXPECT_EQ(run("tokenize --tokenizer bytes", "").out, "\n");
  write("a.txt", "Hello,\nworld");
  write("b.txt", "naïve 世界<|endoftext|>\r\n");
  const Ran ids = must(run("tokenize " + gpt2_ + " a.txt b.txt"));
  EXPECT_EQ(std::ranges::count(ids.out, '\n'), 2);
  EXPECT_EQ(run("tokenize --decode " + gpt2_, ids.out).out, "Hello,\nworldnaïve 世界<|endoftext|>\r\n");
  EXPECT_EQ(run("tokenize " + gpt2_ + " - a.txt", "naïve 世界<|endoftext|>\r\n").out,
            ids.out.substr(ids.out.find('\n') + 1) + ids.out.substr(0, ids.out.find('\n') + 1));
}

TEST_F(TokenizeTest, LinesOfJsonBothWays) {
  std::string texts;
  for (int i = 0; i < 5000; ++i) texts += fmt::format("{{\"text\":\"line {} \\n\\u00e9\",\"other\":1}}\n", i);
  const Ran ids = must(run("tokenize --jsonl " + gpt2_, texts));
  EXPECT_EQ(std::ranges::count(ids.out, '\n'), 5000);
  const Ran back = must(run("tokenize --jsonl --decode " + gpt2_, ids.out));
  EXPECT_TRUE(back.out.starts_with("{\"text\":\"line 0 \\né\"}\n")) << back.out.substr(0, 100);
  EXPECT_TRUE(back.out.ends_with("{\"text\":\"line 4999 \\né\"}\n"));
  EXPECT_EQ(run("tokenize --jsonl --tokenizer bytes", "{\"text\":\"a\"}").out, "{\"ids\": [97]}\n");  // no last newline
}

// Input without an end, and an output that is closed after its first line.
TEST_F(TokenizeTest, EndsWhereNobodyReads) {
  const std::string command = "cd " + quoted(folder_.path().string()) +
                              " && yes '{\"text\":\"a\"}' 2>yes.err | { timeout 60 " + quoted(testing::program()) +
                              " tokenize --tokenizer bytes --jsonl; echo $? >status; } | head -n 1 >out";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(real_files().read(folder_ / "status"), "0\n");
  EXPECT_EQ(real_files().read(folder_ / "out"), "{\"ids\": [97]}\n");
}

// Starts it with a terminal for standard error, and lets it work for a sixth of the time that passes: the moment in
// which no line is shown is then over before its work is, on any machine.
class TokenizeProgress : public TokenizeTest {
 protected:
  std::string shown_of(const std::string& line) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
    const int slave = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);  // kept: what is read stays readable
    const std::string command =
        "cd " + quoted(folder_.path().string()) + " && TERM=xterm exec " + quoted(testing::program()) + " " + line;
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(slave, STDERR_FILENO);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(98);
    }
    std::string shown;
    pollfd poll{terminal, POLLIN, 0};
    for (int turn = 0; turn < 100 && shown.find("\x1b[K") == shown.npos; ++turn) {
      ::kill(child, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      ::kill(child, SIGCONT);
      char text[1000];
      const ssize_t n = ::poll(&poll, 1, 50) == 1 ? ::read(terminal, text, sizeof text) : 0;
      if (n > 0) shown.append(text, static_cast<std::size_t>(n));
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(slave);
    ::close(terminal);
    return shown;
  }
  static void expect_line(const std::string& shown) {
    EXPECT_TRUE(shown.starts_with("\rtokenizing: ")) << shown;
    EXPECT_TRUE(says(shown, " MiB read, "));
  }
  const std::string pieces_ =
      fmt::format("--tokenizer '{}/tests/fixtures/tokenizers/pieces.model'", testing::source_folder());
};

TEST_F(TokenizeProgress, OfOneText) {
  std::string text;
  while (text.size() < 20'000'000) text += fmt::format("the words of a line {}\n", text.size());
  write("in.txt", text);
  const std::string shown = shown_of("tokenize " + pieces_ + " in.txt >out");
  expect_line(shown);
}

TEST_F(TokenizeProgress, OfLines) {
  std::string line = "{\"text\":\"the words of a line that is one of many\"}\n", lines;
  while (lines.size() < 60'000'000) lines += line;
  write("in.jsonl", lines);
  const std::string shown = shown_of("tokenize --jsonl " + pieces_ + " in.jsonl in.jsonl >out");
  expect_line(shown);
}

// A file gets the bytes as they are, a terminal what a person can read of them.
TEST_F(TokenizeTest, ATerminalIsNotSteered) {
  write("ids", "27 91 50 74 195 169\n");
  EXPECT_EQ(run("tokenize --decode --tokenizer bytes ids").out, "\x1b[2J\u00e9");
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
  const int slave = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);  // kept: what is read stays readable
  EXPECT_EQ(run("tokenize --decode --tokenizer bytes ids >" + std::string(::ptsname(terminal))).status, 0);
  char text[1000];
  const ssize_t n = ::read(terminal, text, sizeof text);
  EXPECT_EQ(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0))), "\\x1b[2J\u00e9");
  ::close(slave);
  ::close(terminal);
}

TEST_F(TokenizeTest, WhatIsWrongIsSaidWithItsLine) {
  expect_bad_input("tokenize", "--tokenizer");
  expect_bad_input("tokenize --tokenizer nothing", "nothing");
  expect_bad_input("tokenize --tokenizer bytes none.txt", "none.txt");
  expect_bad_input("tokenize --tokenizer bytes .", "folder");
  expect_bad_input("tokenize " + gpt2_, "standard input: this is an ELF program", "\x7f\x45LF\x01\x01");
  expect_bad_input("tokenize " + gpt2_, "standard input: the text is not valid UTF-8 at byte 2", "ab\xff");
  expect_bad_input("tokenize --decode --tokenizer bytes", "standard input:2: 999", "97\n98 999\n");
  expect_bad_input("tokenize --decode --tokenizer bytes", "\"x\" is not an id", "97 x 98\n");
  expect_bad_input("tokenize --decode --tokenizer bytes", "is not an id", "99999999999999999999\n");
  expect_bad_input("tokenize --jsonl --tokenizer bytes", "standard input:3", "{\"text\":\"a\"}\n\n{\"text\":5}\n");
  expect_bad_input("tokenize --jsonl --tokenizer bytes", "standard input:1", "{\"text\":\n");
  expect_bad_input("tokenize --jsonl --decode --tokenizer bytes", "standard input:1", "{\"ids\":[1,2.5]}\n");
  expect_bad_input("tokenize --jsonl --decode --tokenizer bytes", "standard input:1",
                   "{\"ids\":[18446744073709551615]}\n");
}

TEST_F(TokenizeTest, TrainsAFileThatItThenReads) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += fmt::format("the cat number {} sat on mat x{:x}. ", i % 7, i * i);
  write("corpus.txt", text);
  const Ran ran =
      run("tokenizer train --vocab-size 300 --out t.json --special '<a>' --special '<|endoftext|>' corpus.txt");
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(says(ran.out, "300 tokens"));
  const Ran ids = run("tokenize --tokenizer t.json", "<a> the cat<|endoftext|>");
  EXPECT_TRUE(ids.out.starts_with("298 ")) << ids.out;
  EXPECT_TRUE(ids.out.ends_with(" 299\n")) << ids.out;
  EXPECT_EQ(run("tokenize --decode --tokenizer t.json", ids.out).out, "<a> the cat<|endoftext|>");
  EXPECT_NE(run("tokenizer train --vocab-size 9000 --out u.json corpus.txt").out.find("nothing more to merge"),
            std::string::npos);
}

TEST_F(TokenizeTest, TrainingReadsWhatPrepareReads) {
  write("a.jsonl", "{\"body\":\"some text\"}\nnot json\n{\"body\":\"more text\"}\n");
  const std::string words = "tokenizer train --vocab-size 260 --out made/of/it.json a.jsonl";
  const Ran missing = run(words);
  EXPECT_EQ(missing.status, 2);
  EXPECT_TRUE(says(missing.err, "the field is \"body\"; name the one that holds the text with --text-field"));
  EXPECT_FALSE(says(missing.err, "skip"));
  expect_bad_input(words + " --text-field body", "a.jsonl:2:1");
  const Ran ran = must(run(words + " --text-field body --on-error skip"));
  EXPECT_TRUE(says(ran.out, "passed over: 1 malformed part, the first: a.jsonl:2:1"));
  EXPECT_TRUE(real_files().exists(folder_ / "made/of/it.json"));
  expect_bad_input(words + " --on-error skip", "all of it was passed over; the first: a.jsonl:1:1");
}

TEST_F(TokenizeTest, TrainingNamesWhatIsWrong) {
  write("corpus.txt", "some text");
  write("bad.txt", "bad \xff");
  write("empty.txt", "");
  write("image.txt", "\x89PNG\r\n\x1a\n");
  expect_bad_input("tokenizer grow", "train");
  expect_bad_input("tokenizer train --out t.json corpus.txt", "--vocab-size");
  expect_bad_input("tokenizer train --vocab-size 300 corpus.txt", "--out");
  expect_bad_input("tokenizer train --vocab-size 300 --out t.json", "INPUT");
  expect_bad_input("tokenizer train --vocab-size 256 --out t.json corpus.txt", "257");
  expect_bad_input("tokenizer train --vocab-size 300 --pattern gtp2 --out t.json corpus.txt", "gpt2");
  expect_bad_input("tokenizer train --vocab-size 300 --out bad.txt/t.json corpus.txt", "bad.txt");
  expect_bad_input("tokenizer train --vocab-size 300 --out t.json image.txt", "image.txt: this is a PNG image");
  expect_bad_input("tokenizer train --vocab-size 300 --out t.json none.txt", "none.txt");
  expect_bad_input("tokenizer train --vocab-size 300 --out t.json bad.txt", "bad.txt");
  expect_bad_input("tokenizer train --vocab-size 300 --out t.json empty.txt", "empty.txt is empty");
  expect_bad_input("tokenizer train --vocab-size 300 --out corpus.txt corpus.txt", "what is being read");
  EXPECT_EQ(real_files().read(folder_ / "corpus.txt"), "some text");
  expect_bad_input("tokenizer train --vocab-size 300 --special a --special a --out t.json corpus.txt", "twice");
  EXPECT_FALSE(real_files().exists(folder_ / "t.json"));
}

}  // namespace
}  // namespace redline::cli
