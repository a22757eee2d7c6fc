// The program run as a user runs it: its exit status and what it prints.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "cli/commands.h"
#include "testing/paths.h"
#include "testing/temp_folder.h"

namespace redline::cli {

struct Ran {
  int status = -1;
  std::string out, err;
};

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

class ProgramTest : public ::testing::Test {
 protected:
  // Runs the program in a folder of the test's own.
  Ran run(const Words& words, const std::string& redirect = "") {
    std::string line;
    for (const std::string& word : words) line += " " + quoted(word);
    return run_line(line + " " + redirect);
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
    for (const std::string& part : parts)
      EXPECT_NE(ran.err.find(part), std::string::npos) << "'" << part << "' in: " << ran.err;
    EXPECT_EQ(ran.out, "");
  }
  void write(const std::string& name, std::string_view text) { real_files().replace(folder_ / name, text); }
  bool exists(const std::string& name) { return real_files().exists(folder_ / name); }

  testing::TempFolder folder_;
};

}  // namespace redline::cli
