// Finds the command of a group that the words name.
#include "cli/command_group.h"

#include <algorithm>

#include "base/error.h"
#include "cli/declared.h"
#include "cli/output.h"
#include "config/load.h"

namespace redline::cli {
namespace {

void print_help(const CommandGroup& group) {
  print(fmt::format("redline {0}: {1}\n\nUsage: redline {0} COMMAND [...]\n\nCommands:\n", group.name, group.purpose));
  for (const Command& c : group.commands) print(fmt::format("  {:<9}  {}\n", c.name, c.purpose));
  print("\nFor example:\n");
  for (const std::string& example : group.examples) print(fmt::format("  {}\n", example));
  print(fmt::format("\n`redline {} COMMAND --help` tells about one command.\n", group.name));
}

}  // namespace

int run_group(const CommandGroup& group, const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    if (Declared* to = declaring())
      *to = {std::string(group.name),
             std::string(group.purpose),
             "COMMAND [...]",
             "",
             "",
             {},
             group.examples,
             {group.commands.begin(), group.commands.end()}};
    else
      print_help(group);
    return kDone;
  }
  const auto command = std::ranges::find(group.commands, words[0], &Command::name);
  if (command != group.commands.end()) return command->run(Words(words.begin() + 1, words.end()));
  std::vector<std::string> names;
  for (const Command& c : group.commands) names.emplace_back(c.name);
  const std::string guess = config::nearest(words[0], names);
  fail_user("unknown command '{} {}'; {}", group.name, words[0],
            guess.empty() ? fmt::format("it may be: {}", fmt::join(names, ", "))
                          : fmt::format("did you mean '{} {}'?", group.name, guess));
}

}  // namespace redline::cli
