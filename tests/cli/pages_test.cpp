// The manual page and the completions: everything that the tables hold is in them, and shells take them.
#include <cstdlib>

#include "cli/program.h"
#include "config/keys.h"
#include "config/load.h"

namespace redline::cli {
namespace {

class Pages : public ProgramTest {
 protected:
  std::string page(const Words& words) {
    const Ran ran = must(words);
    EXPECT_EQ(ran.err, "");
    return ran.out;
  }
  static void expect_holds(const std::string& page, std::string_view part) { EXPECT_TRUE(says(page, part)); }
  static bool installed(const std::string& program) {
    return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
  }
  // What bash offers where the cursor stands after `line`.
  std::string offered(const std::string& line) {
    write("complete.bash", page({"completion", "bash"}) + "COMP_LINE=" + quoted(line) +
                               "; COMP_POINT=${#COMP_LINE}; _redline; echo \"${COMPREPLY[*]}\"\n");
    const std::string script = (folder_ / "complete.bash").string(), out = (folder_ / "offered").string();
    EXPECT_EQ(std::system(("bash " + quoted(script) + " > " + quoted(out)).c_str()), 0);
    return real_files().read(folder_ / "offered");
  }
};

TEST_F(Pages, EveryShellKnowsEveryCommandKeyAndPreset) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = page({"completion", shell});
    for (const Command& command : commands()) expect_holds(script, command.name);
    for (const config::Key& key : config::keys()) expect_holds(script, std::string(key.name) + "=");
    for (const config::EmbeddedFile& preset : config::embedded_configs()) expect_holds(script, preset.name);
    for (const char* part : {"data prepare", "stats", "val-fraction", "share-card"}) expect_holds(script, part);
    if (!installed(shell)) continue;
    write("script", script);
    EXPECT_EQ(std::system((std::string(shell) + " -n " + quoted((folder_ / "script").string())).c_str()), 0) << shell;
  }
}

TEST_F(Pages, BashOffersWhatFits) {
  if (!installed("bash")) GTEST_SKIP() << "bash is not installed";
  EXPECT_EQ(offered("redline tra"), "train\n");
  EXPECT_EQ(offered("redline data "), "prepare stats\n");
  EXPECT_EQ(offered("redline export --dtype b"), "bf16\n");
  EXPECT_EQ(offered("redline train optim.l"), "optim.lr=\n");
  EXPECT_EQ(offered("redline train --preset qu"), "quick\n");
  EXPECT_EQ(offered("redline launch -n 2 -- train --resu"), "--resume\n");
  EXPECT_EQ(offered("redline report runs/"), "\n");  // files, which bash offers by itself
}

TEST_F(Pages, ManualHasEveryCommandFlagAndKey) {
  std::string manual = page({"man"});
  std::erase(manual, '\\');
  EXPECT_EQ(manual.rfind(".TH REDLINE 1", 0), 0u);
  for (const Command& command : commands()) expect_holds(manual, ".SS redline " + std::string(command.name) + "\n");
  for (const config::Key& key : config::keys()) expect_holds(manual, "fB" + std::string(key.name) + "fR\n");
  for (const config::EmbeddedFile& preset : config::embedded_configs())
    expect_holds(manual, "fB" + std::string(preset.name) + "fR\n");
  for (const char* part : {".SS redline data prepare\n", "fB--allow-changefR", "EXIT STATUS"})
    expect_holds(manual, part);
}

TEST_F(Pages, RefusesOtherShells) {
  expect_bad_input({"completion"}, {"bash, zsh or fish"});
  expect_bad_input({"completion", "tcsh"}, {"'tcsh'"});
  expect_bad_input({"completion", "bash", "zsh"}, {"one shell"});
}

}  // namespace
}  // namespace redline::cli
