// A command that is several: redline data prepare, redline data stats.
#pragma once

#include "cli/commands.h"

namespace redline::cli {

struct CommandGroup {
  std::string_view name, purpose;
  std::span<const Command> commands;
  std::vector<std::string> examples;
};

// Runs the one that the first word names; without one, or asked for help, tells which there are.
int run_group(const CommandGroup& group, const Words& words);

}  // namespace redline::cli
