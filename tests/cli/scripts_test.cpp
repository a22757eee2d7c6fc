// What scripts read of the program: the exit status of every command, and the one document of --json. And what people
// read: nothing that came from outside steers their terminal.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/arguments.h"
#include "cli/program.h"

namespace redline::cli {
namespace {

// A way to run each command in moments, and one with bad input. {RUN} is a trained run, {TINY} a model and its batch,
// {FIXTURES} the folder of the oracles' cases.
struct Call {
  std::string name, done, bad;
  bool quick = false;  // prints at once, so that a full disk is tried as well
};

const std::vector<Call> kCalls = {
    {"train", "--device cpu --out trained train.max_steps=1 {TINY}", "none.toml"},
    {"launch", "-n 1 -- train --device cpu --out launched train.max_steps=1 {TINY} --json", "-n 1 -- frobnicate"},
    {"sweep", "--grid optim.lr=1e-3 --out sweep --dry-run {TINY}", "--grid optim.lr=fast --out sweep {TINY}", true},
    {"config", "quick", "none.toml", true},
    {"data prepare", "--tokenizer bytes --out shards text.txt", "--tokenizer bytes --out bad none.txt"},
    {"data stats", "text.txt --tokenizer bytes --seq-len 64", "none.txt --tokenizer bytes --seq-len 64", true},
    {"tokenize", "--tokenizer bytes text.txt", "--tokenizer none.json text.txt", true},
    {"tokenizer train", "--vocab-size 260 --out t.json text.txt", "--vocab-size 260 --out u.json none.txt", true},
    {"report", "{RUN}", "none", true},
    {"eval", "{RUN} --batches 1 --device cpu", "none", true},
    {"sample", "{RUN} --prompt 1 --tokens 2 --device cpu", "none --prompt 1", true},
    {"plan", "--card h200 {TINY}", "--card abacus", true},
    {"profile", "--device cpu --steps 1 {TINY}", "--run none"},
    {"doctor", "{RUN}", "none/run"},
    {"ladder", "--device cpu --seconds 1 {TINY}", "none.toml"},
    {"tune", "--device cpu --seconds 1 --out tuned.toml {TINY}", "none.toml"},
    {"export", "{RUN} --out exported", "none --out exported2"},
    {"import", "{FIXTURES}llama3-gqa --out imported", "none --out imported2"},
    {"verify", "{FIXTURES}llama-mha", "none", true},
    {"check", "--device cpu", "--device abacus"},
    {"info", "", "now", true},
    {"peaks", "--device cpu", "--device abacus"},
    {"completion", "bash", "tcsh", true},
    {"man", "", "page", true},
};

class Scripts : public ProgramTest {
 protected:
  void SetUp() override {
    write("text.txt", "a few words to learn from, and a few words more\n");
    must(words_of("train --device cpu --out run train.max_steps=12 train.eval_batches=1") + kTinyModel);
  }
  static std::string filled(std::string line) {
    const auto put = [&](const std::string& what, const std::string& with) {
      if (const std::size_t at = line.find(what); at != line.npos) line.replace(at, what.size(), with);
    };
    std::string tiny;
    for (const std::string& word : kTinyModel) tiny += word + " ";
    put("{RUN}", "run");
    put("{TINY}", tiny);
    put("{FIXTURES}", kFixtures);
    return line;
  }
  static bool has_json(const Declared& command) {
    return std::ranges::find(command.flags, "--json", &DeclaredFlag::name) != command.flags.end();
  }
};

TEST_F(Scripts, EveryCommandEndsAsItsTableSaysAndPrintsOneDocument) {
  for (const Declared& command : declared_commands()) {
    if (!command.commands.empty()) continue;  // a group
    const auto call = std::ranges::find(kCalls, command.name, &Call::name);
    ASSERT_NE(call, kCalls.end()) << command.name << " has no line in kCalls";
    const std::string json = has_json(command) ? " --json" : "";
    const auto expect_status = [&](const Ran& ran, int status) {
      EXPECT_EQ(ran.status, status) << command.name << "\n" << ran.out << ran.err;
      EXPECT_NE(std::ranges::find(command.statuses, status, &ExitStatus::status), command.statuses.end());
    };
    const std::string done = command.name + " " + filled(call->done);
    const Ran ran = run_line(done + json);
    const auto document = nlohmann::json::parse(ran.out, nullptr, false);
    const bool wants_document = !json.empty() || done.ends_with("--json");
    EXPECT_TRUE(!wants_document || !document.is_discarded()) << command.name << " prints\n" << ran.out;
    const bool ill = command.name == "doctor" && !document.is_discarded() && !document.at("healthy").get<bool>();
    expect_status(ran, ill ? kFailed : kDone);
    const Ran bad = run_line(command.name + " " + filled(call->bad) + json);
    expect_status(bad, kBadInput);
    EXPECT_EQ(bad.out, "") << command.name;
    EXPECT_TRUE(says(bad.err, "redline: error: "));
    if (call->quick && std::filesystem::exists("/dev/full")) expect_status(run_line(done + " >/dev/full"), kFailed);
  }
}

// The others make a text for another program, or start a command that has --json itself.
TEST_F(Scripts, CommandsWithFiguresHaveJson) {
  std::set<std::string> without, not_stopped;
  for (const Declared& command : declared_commands()) {
    if (!command.commands.empty()) continue;
    if (!has_json(command)) without.insert(command.name);
    if (std::ranges::find(command.statuses, kStopped, &ExitStatus::status) == command.statuses.end())
      not_stopped.insert(command.name);
  }
  EXPECT_EQ(without, (std::set<std::string>{"launch", "tokenize", "completion", "man"}));
  EXPECT_EQ(not_stopped, (std::set<std::string>{"config", "info", "completion", "man"})) << "over in a moment";
}

TEST_F(Scripts, ADocumentGoesToAFileOrToStandardOutput) {
  const std::string tiny = filled("--device cpu --seconds 1 {TINY}");
  const Ran both = run_line("ladder " + tiny + " --json table.json");
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_TRUE(says(both.out, {"real tokens/s", "table: table.json"}));
  EXPECT_TRUE(nlohmann::json::parse(real_files().read(folder_ / "table.json")).contains("rows"));
  // A preset behind it is the configuration, no file to write.
  const Ran printed = run_line("ladder --json quick " + tiny);
  EXPECT_EQ(nlohmann::json::parse(printed.out).at("title"), "ladder of quick");
  EXPECT_FALSE(exists("quick"));
  expect_bad_input(run_line("ladder --json --markdown " + tiny), {"--markdown", "--json FILE"});
}

TEST_F(Scripts, TrainTellsAScriptWhereTheRunIs) {
  const Ran ran = run_line(filled("train --device cpu --out a --json train.max_steps=3 {TINY}"));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto end = nlohmann::json::parse(ran.out);
  EXPECT_EQ(end.at("folder"), "a");
  EXPECT_EQ(end.at("outcome"), "finished");
  EXPECT_EQ(end.at("steps"), 3);
  EXPECT_GT(end.at("eval_loss").get<double>(), 0);
  const auto reported = nlohmann::json::parse(must({"report", "a", "--json"}).out).at("runs").at(0);
  EXPECT_EQ(end.at("run").at("steps"), reported.at("steps"));
  EXPECT_TRUE(says(ran.err, "step 3/3"));
  const Ran dry = run_line(filled("train --device cpu --out b --json --dry-run {TINY}"));
  EXPECT_EQ(nlohmann::json::parse(dry.out).at("outcome"), "dry run");
}

TEST(ExitStatuses, TheDocumentationIsWhatTheCommandsSay) {
  const Path page = Path(testing::source_folder()) / "docs" / "README.md";
  std::string text = real_files().read(page);
  const std::size_t begin = text.find("| command | 0 |"), end = text.find("\n\n", begin);
  ASSERT_NE(end, text.npos);
  const std::string table = exit_statuses_as_markdown();
  if (std::getenv("REDLINE_UPDATE_DOCS")) real_files().replace(page, text.replace(begin, end + 1 - begin, table));
  EXPECT_TRUE(says(text, "\n\n" + table + "\n")) << "run tests_cli once with REDLINE_UPDATE_DOCS=1";
}

// A word that another tool has for one of our flags is answered with the flag, in every command that has it.
TEST(FlagsElsewhere, AreAnsweredWithOurs) {
  const std::vector<Declared> all = declared_commands();
  for (const FlagNames& row : flags_elsewhere()) {
    int commands_with_it = 0;
    for (const Declared& declared : all) {
      const auto has = [&](std::string_view flag) {
        return std::ranges::find(declared.flags, flag, &DeclaredFlag::name) != declared.flags.end();
      };
      if (!has(row.here)) continue;
      ++commands_with_it;
      Words command = words_of(declared.name);
      const std::string first = command[0];
      command.erase(command.begin());
      for (const std::string& word : words_of(row.elsewhere)) {
        const auto answers = [&](const FlagNames& other) {  // the first that the command has
          return has(other.here) && other.elsewhere.find(" " + word + " ") != other.elsewhere.npos;
        };
        if (has("--" + word) || &*std::ranges::find_if(flags_elsewhere(), answers) != &row) continue;
        for (const std::string& flag : {"--" + word, "--" + word + "=1"}) {
          const auto run_it = [&] {
            for (const Command& c : commands())
              if (c.name == first) c.run(command + Words{flag});
          };
          EXPECT_TRUE(says(testing::error_of(run_it), {"'--" + word + "'", "'" + std::string(row.here)}));
        }
      }
    }
    EXPECT_GT(commands_with_it, 0) << "no command has " << row.here;
  }
}

TEST(FlagsElsewhere, BeginningsAndKeysAreUnderstood) {
  const auto said = [](const Command& command, const std::string& flag) {
    return testing::error_of([&] { command.run({flag, "1"}); });
  };
  const auto command = [](std::string_view name) {
    const std::vector<Command> all = commands();
    return *std::ranges::find(all, name, &Command::name);
  };
  EXPECT_TRUE(says(said(command("sample"), "--temp"), {"--temp", "--temperature T"}));
  EXPECT_TRUE(says(said(command("sample"), "--temperat"), {"mean '--temperature'"}));
  EXPECT_TRUE(says(said(command("sample"), "--top_k"), {"mean '--top-k'"}));
  EXPECT_TRUE(says(said(command("train"), "--batch-size"), {"--batch-size", "train.batch_size=VALUE"}));
  EXPECT_TRUE(says(said(command("profile"), "--batch-size"), {"train.batch_size=VALUE"}));
  EXPECT_TRUE(says(said(command("eval"), "--batch-size"), {"train.batch_size", "key"}));
  EXPECT_TRUE(says(said(command("train"), "--output_dir"), {"--out DIR"}));
}

TEST_F(Scripts, ModelsAreNamedAsInEval) {
  const Ran word = must(words_of("sample run --prompt 1 --tokens 3 --device cpu --seed 5"));
  EXPECT_EQ(word.out, must(words_of("sample --checkpoint run --prompt 1 --tokens 3 --device cpu --seed 5")).out);
  must(words_of("export run --out hf"));
  expect_bad_input({"sample", "run", "Once", "--prompt", "x"}, {"'Once'", "--prompt"});
  expect_bad_input({"sample", "run", "--checkpoint", "run", "--prompt", "x"}, {"one model"});
  expect_bad_input({"export", "run", "my-model"}, {"'my-model'", "--out"});
  expect_bad_input({"export", "--out", "hf2"}, {"MODEL"});
}

TEST_F(Scripts, KeysAreFoundByTheirWords) {
  const std::string all = must({"config", "--keys"}).out, some = must({"config", "--keys", "BATCH"}).out;
  EXPECT_TRUE(says(some, "train.batch_size"));
  EXPECT_FALSE(says(some, "optim.beta1"));
  EXPECT_LT(some.size(), all.size() / 2);
  EXPECT_TRUE(says(must({"config", "--keys", "learning_rate"}).out, "optim.lr "));
  expect_bad_input({"config", "--keys", "batchsiez"}, {"batchsiez"});
  expect_bad_input({"config", "--presets", "quick"}, {"--presets", "'quick'"});
  expect_bad_input({"config", "--keys", "--preset", "quick"}, {"--keys", "--preset"});
  const auto json = nlohmann::json::parse(must({"config", "quick", "train.batch_size=3", "--json"}).out);
  EXPECT_EQ(json.at("train").at("batch_size"), 3);
  EXPECT_EQ(nlohmann::json::parse(must({"config", "--keys", "batch_size", "--json"}).out).at(0).at("key"),
            "train.batch_size");
}

// What a terminal would get: the program's output through one.
std::string through_terminal(const Path& folder, const Words& words) {
  const int ours = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (ours < 0 || ::grantpt(ours) != 0 || ::unlockpt(ours) != 0) return "no terminal";
  const int theirs = ::open(::ptsname(ours), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const pid_t child = start_program(folder, words, theirs);
  ::close(theirs);
  std::string out;
  for (char bytes[4096];;) {
    const ssize_t got = ::read(ours, bytes, sizeof bytes);
    if (got <= 0) break;  // EIO when the last writer has gone
    out.append(bytes, static_cast<std::size_t>(got));
  }
  ::close(ours);
  int status = 0;
  ::waitpid(child, &status, 0);
  return out;
}

TEST_F(Scripts, AModelsTextIsRawInAPipeAndVisibleOnATerminal) {
  const Words words = {"sample", "run", "--prompt", "\x1b[31mred", "--tokens", "1", "--device", "cpu"};
  EXPECT_TRUE(must(words).out.starts_with("\x1b[31mred"));
  const std::string shown = through_terminal(folder_.path(), words);
  EXPECT_TRUE(says(shown, "\\x1b[31mred"));
  EXPECT_FALSE(says(shown, "\x1b"));
}

// Through a pipe, too, that may end at a terminal (| head): a folder's name, and what a run's files say of its device.
TEST_F(Scripts, WhatARunSaysOfItselfSteersNoTerminal) {
  const std::string name = "run\x1b[2J\x7f";
  std::filesystem::copy(folder_ / "run", folder_ / name, std::filesystem::copy_options::recursive);
  std::string events = real_files().read(folder_ / name / "events.jsonl");
  const std::string key = "\"device\":\"";
  const std::size_t at = events.find(key);
  ASSERT_NE(at, events.npos) << events;
  write(name + "/events.jsonl", events.insert(at + key.size(), "\\u001b]0;title\\u0007"));
  for (const std::string command : {"report", "doctor"}) {
    const Ran ran = run({command, name});
    EXPECT_TRUE(says(ran.out, "run\\x1b[2J\\x7f")) << command << ran.err;
    for (const std::string& text : {ran.out, ran.err, run({command, name, "--json"}).out})
      EXPECT_EQ(text.find_first_of("\x1b\x07\x7f"), text.npos) << command << "\n" << text;
    EXPECT_TRUE(command == "report" || says(ran.out, "\\x1b]0;title\\x07"));
    EXPECT_EQ(nlohmann::json::parse(run({command, name, "--json"}).out).is_object(), true) << command;
  }
}

}  // namespace
}  // namespace redline::cli
