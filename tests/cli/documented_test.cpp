// What the documentation shows of commands is what they print: every block of docs/ that opens with ```console is run,
// line by line from each "$ ", and its output compared. Only commands that need no card, no data of a user and no
// clock stand in such blocks.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/program.h"

namespace redline::cli {
namespace {

constexpr std::string_view kOpens = "```console\n", kEnds = "```\n", kPrompt = "$ ";

class Documented : public ProgramTest {
 protected:
  // What a shell prints for a line in which `redline` is the program under test.
  std::string printed(const std::string& line) {
    write("line.sh", "redline() { " + quoted(testing::program()) + " \"$@\"; }\n" + line + "\n");
    const std::string command =
        "cd " + quoted(folder_.path().string()) + " && LC_ALL=C.UTF-8 sh line.sh > stdout 2> stderr < /dev/null";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << line << "\n" << real_files().read(folder_ / "stderr");
    return real_files().read(folder_ / "stdout");
  }

  // A block with the output of its commands as it is now. A backslash at its end carries a command on.
  std::string run_again(std::string_view block) {
    std::string again, command;
    for (std::size_t at = 0; at < block.size();) {
      const std::size_t end = block.find('\n', at) + 1;
      const std::string line(block.substr(at, end - at));
      at = end;
      const bool goes_on = !command.empty();
      if (!goes_on && !line.starts_with(kPrompt)) continue;  // what it printed before
      again += line;
      command += goes_on ? line : line.substr(kPrompt.size());
      if (command.ends_with("\\\n")) continue;
      again += printed(command);
      command.clear();
      ++commands_;
    }
    return again;
  }

  int commands_ = 0;
};

TEST_F(Documented, CommandsPrintWhatTheDocsSay) {
  std::vector<Path> pages;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_folder() + "/docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  std::ranges::sort(pages);
  for (const Path& page : pages) {
    std::string text = real_files().read(page);
    const std::string before = text;
    for (std::size_t at = 0; (at = text.find(kOpens, at)) != text.npos;) {
      at += kOpens.size();
      const std::size_t end = text.find(kEnds, at);
      ASSERT_NE(end, text.npos) << page;
      const std::string block = text.substr(at, end - at), again = run_again(block);
      if (!std::getenv("REDLINE_UPDATE_DOCS")) {
        EXPECT_EQ(block, again) << page << ": REDLINE_UPDATE_DOCS=1 tests_cli --gtest_filter='Documented.*' mends it";
      }
      text.replace(at, end - at, again);
      at += again.size();
    }
    if (std::getenv("REDLINE_UPDATE_DOCS") && text != before) real_files().replace(page, text);
  }
  EXPECT_GE(commands_, 6) << "docs/ had more of them";
}

}  // namespace
}  // namespace redline::cli
