// Declarations of all commands, for the manual page and the completions.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"

namespace redline::cli {

struct DeclaredFlag {
  std::string name, value, help;     // value is empty where it takes none
  std::vector<std::string> choices;  // empty: anything
};

struct Declared {
  std::string name;  // "train", "data prepare"
  std::string purpose, usage;
  std::string words, words_help;  // its words beside flags; may be empty
  std::vector<DeclaredFlag> flags;
  std::vector<std::string> examples;
  std::vector<Command> commands;  // of a group, which has no flags of its own

  bool takes_keys() const { return words.find("key=value") != words.npos; }
};

// Every command in the order of the help, a group before its commands.
std::vector<Declared> declared_commands();

// A command that is asked for help puts its declaration here instead of printing it. Null: it prints.
Declared* declaring();

}  // namespace redline::cli
