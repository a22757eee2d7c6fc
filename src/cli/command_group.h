// A command that is several: redline data prepare, redline data stats.
#pragma once

#include "cli/commands.h"

namespace redline::cli {

struct CommandGroup {
  std::string_view name, purpose;
  std::span<const Command> commands;
  std::vector<std::string> examples;
};

// Runs the command that the first word names. Without a word, or with --help, it lists the commands.
int run_group(const CommandGroup& group, const Words& words);

}  // namespace redline::cli
