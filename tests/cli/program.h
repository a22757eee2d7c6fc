// The program run as a user runs it: its exit status and what it prints.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/files.h"
#include "cli/commands.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "testing/temp_folder.h"

namespace redline::cli {

using testing::says;

struct Ran {
  int status = -1;
  std::string out, err;
};

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

inline const std::string kFixtures = testing::source_folder() + "/tests/fixtures/";

// "train --out a" as words.
inline Words words_of(std::string_view line) {
  Words words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    if (end > at) words.emplace_back(line.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// A model and a batch that train in moments.
inline const Words kTinyModel = words_of(
    "model.layers=1 model.hidden=32 model.heads=2 model.head_dim=16 model.ffn=48 train.seq_len=64 train.batch_size=2");

// Starts the program in `folder`, with its standard streams in files there, or `out` as its output. Returns its
// process.
inline pid_t start_program(const Path& folder, Words words, int out = -1, void (*on_interrupt)(int) = SIG_DFL) {
  words.insert(words.begin(), testing::program());
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::signal(SIGINT, on_interrupt);
  if (::chdir(folder.c_str()) != 0 || !std::freopen("stderr", "w", stderr)) ::_exit(99);
  if (out >= 0 ? ::dup2(out, STDOUT_FILENO) < 0 : !std::freopen("stdout", "w", stdout)) ::_exit(99);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(testing::program(), arguments.data());
  ::_exit(98);
}

class ProgramTest : public ::testing::Test {
 protected:
  // Runs the program in a folder of the test's own.
  Ran run(const Words& words, const std::string& redirect = "") {
    std::string line;
    for (const std::string& word : words) line += " " + quoted(word);
    return run_line(line + " " + redirect);
  }
  // The same, and it must succeed.
  Ran must(const Words& words) { return must(run(words)); }
  static Ran must(Ran ran) {
    EXPECT_EQ(ran.status, 0) << ran.err;
    return ran;
  }
  // The words as a shell reads them; `input` is what the program is given.
  Ran run_line(const std::string& line, std::string_view input = "") {
    write("stdin", input);
    const std::string command = "cd " + quoted(folder_.path().string()) + " && LC_ALL=C.UTF-8 " +
                                quoted(testing::program()) + " 2>stderr <stdin >stdout " + line;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), real_files().read(folder_ / "stdout"),
            real_files().read(folder_ / "stderr")};
  }

  // Exit 2 and exactly one line on standard error that holds every part.
  void expect_bad_input(const Words& words, const Words& parts) { expect_bad_input(run(words), parts); }
  void expect_bad_input(const Ran& ran, const Words& parts) {
    EXPECT_EQ(ran.status, 2) << ran.err;
    EXPECT_EQ(ran.err.rfind("redline: error: ", 0), 0u) << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << ran.err;
    for (const std::string& part : parts) EXPECT_TRUE(says(ran.err, part));
    EXPECT_EQ(ran.out, "");
  }
  void write(const std::string& name, std::string_view text) { real_files().replace(folder_ / name, text); }
  bool exists(const std::string& name) { return real_files().exists(folder_ / name); }

  testing::TempFolder folder_;
};

}  // namespace redline::cli
