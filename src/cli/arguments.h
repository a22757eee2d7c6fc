// The words, flags and exit statuses of one command. One declaration gives parsing, errors that name the flag that was
// meant, --help, the manual page, the completions and the table of statuses in docs/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace redline::data {
struct InputFormat;
}

namespace redline::cli {

class Arguments {
 public:
  // `usage` is what follows "redline COMMAND"; `examples` are whole lines.
  Arguments(std::string command, std::string purpose, std::string usage, std::vector<std::string> examples);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  // Variables must outlive parse(). A flag that is not given leaves its variable as it is.
  void words(const std::string& name, std::vector<std::string>& to, const std::string& help);
  void flag(const std::string& name, bool& to, const std::string& help);
  void text(const std::string& name, const std::string& value, std::string& to, const std::string& help);
  // One of `choices`, and nothing else.
  void choice(const std::string& name, const std::string& value, std::string& to, std::vector<std::string> choices,
              const std::string& help);
  void texts(const std::string& name, const std::string& value, std::vector<std::string>& to, const std::string& help);
  // repeated() takes one value each time the flag is given; texts() takes all words that follow it.
  void repeated(const std::string& name, const std::string& value, std::vector<std::string>& to,
                const std::string& help);
  void integer(const std::string& name, const std::string& value, std::int64_t& to, std::int64_t low, std::int64_t high,
               const std::string& help);
  void number(const std::string& name, const std::string& value, double& to, double low, double high,
              const std::string& help);

  // Flags that several commands have, with one meaning.
  void device(std::string& to) { text("--device", "NAME", to, "where to run: cpu, cuda or auto (default: auto)"); }
  void average(bool& to) {
    flag("--average", to, "the average of the run's weights (train.average) instead of the weights themselves");
  }
  void precision(std::string& to) {
    choice("--precision", "NAME", to, {"bf16", "tf32", "fp32"},
           "what matrix products compute with on a GPU: bf16, tf32 or fp32 (default: the run's, else bf16)");
  }
  // Standard output then holds that document and nothing else; everything for people goes to standard error.
  void json(bool& to, const std::string& help = "print one JSON document") { flag("--json", to, help); }
  // --json, or --json FILE: `to` is kStandardOutput or the file. What names a configuration is no file.
  void json_or_file(std::string& to, const std::string& help);
  static constexpr const char* kStandardOutput = "-";

  // When the command ends with a status, where that is more than every command's (0 done, 1 the machine failed, 2 bad
  // input). A command that a signal stops in good order says what is left then, with kStopped.
  void exits(int status, const std::string& when);

  // False: --help was asked for and has been printed. A word that cannot be understood is a UserError.
  bool parse(const Words& words);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Declarations, for the manual page and the completions.
struct DeclaredFlag {
  std::string name, value, help;     // value is empty where it takes none
  std::vector<std::string> choices;  // empty: anything
};

struct ExitStatus {
  int status = 0;
  std::string when;
};

struct Declared {
  std::string name;  // "train", "data prepare"
  std::string purpose, usage;
  std::string words, words_help;  // its words beside flags; may be empty
  std::vector<DeclaredFlag> flags;
  std::vector<std::string> examples;
  std::vector<Command> commands = {};     // of a group, which has no flags of its own
  std::vector<ExitStatus> statuses = {};  // none of a group

  bool takes_keys() const { return words.find("key=value") != words.npos; }
};

// Every command in the order of the help, a group before its commands.
std::vector<Declared> declared_commands();

// A row a command, a column a status.
std::string exit_statuses_as_markdown();

// Flags as other tools spell them, each between spaces and without its dashes.
struct FlagNames {
  std::string_view here, elsewhere;
};
std::span<const FlagNames> flags_elsewhere();

// A command that is several: redline data prepare, redline data stats.
struct CommandGroup {
  std::string_view name, purpose;
  std::span<const Command> commands;
  std::vector<std::string> examples;
};

// Runs the command that the first word names. Without a word, or with --help, it lists the commands.
int run_group(const CommandGroup& group, const Words& words);

// "MODEL", or --checkpoint MODEL: how commands name the weights that they read.
struct ModelWords {
  std::vector<std::string> words;
  std::string checkpoint;

  void declare(Arguments& arguments);
  // None, or more than one, is a UserError; `second` says what a second word may have been meant for.
  std::string model(std::string_view command, std::string_view second) const;
};

// "INPUT... [--text-field F] [--separator S] [--max-document-mib N] [--on-error WHAT]": how commands name the documents
// that they read.
struct DocumentWords {
  std::vector<std::string> inputs;
  std::string text_field = "text", separator, on_error = "stop";
  std::int64_t max_document_mib = 256;

  void declare(Arguments& arguments);
  data::InputFormat format() const;  // a bad value of a flag is a UserError
  bool skip_bad() const { return on_error == "skip"; }
};

}  // namespace redline::cli
