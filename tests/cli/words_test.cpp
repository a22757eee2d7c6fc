// What every command says, read as a person reads it: counts agree with their nouns, and help, examples and pages name
// only flags that are there.
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "cli/program.h"
#include "testing/paths.h"

namespace redline::cli {
namespace {

class WordsTest : public ProgramTest {
 protected:
  // "1 batches", "1 of 1 documents"; not "1.1 tokens" or "step_1 files", and not the 1 of a rate or a list.
  void expect_no_single_plural(const Ran& ran) {
    static const std::regex kWrong("(^|[ (\\n])1 (of 1 )?[a-z]*[^s\\W\\d_]s\\b");
    for (const std::string& text : {ran.out, ran.err}) {
      std::smatch found;
      EXPECT_FALSE(std::regex_search(text, found, kWrong)) << found.str() << "\nin: " << text;
    }
  }
  Ran expect_well_counted(const Words& words) {
    const Ran ran = must(words);
    expect_no_single_plural(ran);
    return ran;
  }
};

TEST_F(WordsTest, OneOfAnythingIsSingular) {
  const Words tiny = kTinyModel + words_of(
                                      "train.batch_size=1 train.max_steps=1 train.eval_every=0 "
                                      "train.eval_batches=1 train.sample_every=0");
  const auto with_tiny = [&](const Words& words) { return words + tiny; };
  Ran ran = expect_well_counted(with_tiny({"train", "--device", "cpu", "--out", "run"}));
  for (const char* part : {" 1 layer, ", " 1 row x 64 tokens = 64 tokens a step, 1 step;", "1 step done in "})
    EXPECT_TRUE(says(ran.out, part)) << "\nin: ";
  ran = expect_well_counted({"train", "--resume", "--device", "cpu", "--out", "run"});
  EXPECT_TRUE(says(ran.out, "nothing is left to do after 1 step\n"));

  ran = expect_well_counted({"eval", "--device", "cpu", "--checkpoint", "run", "--batches", "1"});
  EXPECT_TRUE(says(ran.out, ", 1 batch with rows of 64 tokens\n"));
  ran = expect_well_counted({"sample", "--device", "cpu", "--checkpoint", "run", "--prompt", "1", "--tokens", "2"});
  EXPECT_TRUE(says(ran.err, {"prefill: 1 token in ", "decode:  1 token in 1 step of "}));
  ran = expect_well_counted({"report", "run", "--tokens", "1"});
  EXPECT_TRUE(says(ran.out, "after 1 step, "));
  expect_well_counted({"export", "--checkpoint", "run", "--out", "hf"});
  expect_well_counted(with_tiny({"plan", "--card", "h200"}));
  ran = expect_well_counted(with_tiny({"profile", "--device", "cpu", "--steps", "1"}));
  EXPECT_TRUE(says(ran.out, "mean of 1 step\n"));
}

TEST_F(WordsTest, OneDocumentIsSingular) {
  write("one.txt", "a");
  Ran ran =
      expect_well_counted({"data", "prepare", "--tokenizer", "bytes", "--end-token", "none", "--out", "p", "one.txt"});
  EXPECT_TRUE(says(ran.out, "1 document, 1 token, "));
  ran =
      expect_well_counted({"data", "stats", "one.txt", "--tokenizer", "bytes", "--seq-len", "1", "--batch-size", "1"});
  EXPECT_TRUE(says(ran.out, {"1 document, ", "rows of 1 token, batches of 1 row"}));
}

const std::regex kFlag("--[a-z][a-z0-9-]*");

std::set<std::string> flags_in(const std::string& text) {
  return {std::sregex_token_iterator(text.begin(), text.end(), kFlag), std::sregex_token_iterator()};
}

// Help as its parts: the line of usage, the flags that have a line of their own, the examples.
struct Help {
  std::string usage;
  std::set<std::string> flags = {"--help"};
  std::vector<std::string> examples;
};

class HelpTest : public ProgramTest {
 protected:
  // Every command by the words that name it, those of groups as "data prepare".
  std::map<std::string, Help> all_help() {
    std::map<std::string, Help> all;
    std::vector<Words> names;
    for (const Command& c : commands()) names.push_back({std::string(c.name)});
    for (std::size_t i = 0; i < names.size(); ++i) {  // groups add to it
      Words words = names[i];
      words.emplace_back("--help");
      const Ran ran = must(words);
      Help help;
      enum { title, commands, flags, examples } part = title;
      std::istringstream lines(ran.out);
      for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("Usage: ")) help.usage = line;
        if (line.starts_with("Commands:")) part = commands;
        if (line.starts_with("Usage: ") && part == title) part = flags;
        if (line.starts_with("For example:")) part = examples;
        if (!line.starts_with("  ")) continue;
        const std::string word = line.substr(2, line.find(' ', 2) - 2);
        if (part == commands) names.push_back({names[i][0], word});
        if (part == flags && word.starts_with("--")) help.flags.insert(word);
        if (part == examples) help.examples.push_back(line.substr(2));
      }
      all[names[i].size() == 1 ? names[i][0] : names[i][0] + " " + names[i][1]] = help;
    }
    return all;
  }

  // Every command in `line` has the flags that follow it. What follows two spaces explains.
  static void expect_known_flags(const std::map<std::string, Help>& all, const std::string& line,
                                 const std::string& where) {
    static const std::regex kCommand("redline ([a-z]+)( [a-z]+)?([^|`]*)");
    for (std::sregex_iterator it(line.begin(), line.end(), kCommand), end; it != end; ++it) {
      const std::string one = (*it)[1], two = one + (*it)[2].str();
      const auto found = all.contains(two) ? all.find(two) : all.find(one);
      if (found == all.end()) continue;  // prose
      // Behind a lone "--" stands another command.
      const std::string text = it->str(), own = text.substr(0, text.find(" -- "));
      if (own.size() < text.size()) expect_known_flags(all, "redline " + text.substr(own.size() + 4), where);
      for (const std::string& flag : flags_in(own))
        EXPECT_TRUE(found->second.flags.contains(flag)) << where << ": " << flag << " in: " << line;
    }
  }
};

TEST_F(HelpTest, UsageAndExamplesNameFlagsThatAreThere) {
  const auto all = all_help();
  EXPECT_TRUE(all.contains("data prepare") && all.contains("data stats") && all.contains("tokenizer train"));
  for (const auto& [name, help] : all) {
    EXPECT_TRUE(help.usage.starts_with("Usage: redline " + name)) << help.usage;
    for (const std::string& flag : flags_in(help.usage)) EXPECT_TRUE(help.flags.contains(flag)) << name << " " << flag;
    EXPECT_FALSE(help.examples.empty()) << name;
    for (const std::string& example : help.examples) {
      EXPECT_TRUE(says(example, "redline ")) << name;
      expect_known_flags(all, example, name);
    }
  }
}

// The first flag that a command does not take is named: not one that its help lists.
TEST_F(HelpTest, ListedFlagsAreTaken) {
  for (const auto& [name, help] : all_help()) {
    std::istringstream words_of(name);
    const Words command{std::istream_iterator<std::string>(words_of), {}};
    for (const std::string& flag : help.flags) {
      if (flag == "--help") continue;
      expect_bad_input(command + Words{flag, "1", "--no-such-flag"}, {"has no flag '--no-such-flag'"});
    }
  }
}

TEST_F(HelpTest, PagesNameFlagsThatAreThere) {
  const auto all = all_help();
  const Path root = testing::source_folder();
  std::vector<Path> pages = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  EXPECT_GT(pages.size(), 5u);
  for (const Path& page : pages) {
    std::istringstream lines(real_files().read(page));
    for (std::string line; std::getline(lines, line);) expect_known_flags(all, line, page.filename().string());
  }
}

TEST_F(HelpTest, OfACommandInAGroup) {
  EXPECT_EQ(run({"help", "data", "prepare"}).out, run({"data", "prepare", "--help"}).out);
}

}  // namespace
}  // namespace redline::cli
