// A command's flags are known once it runs, so each is asked for its help, which lands here instead of on a terminal.
#include "cli/declared.h"

#include <fmt/format.h>

#include "base/error.h"

namespace redline::cli {
namespace {

Declared* asked = nullptr;

Declared declared_by(const Command& command, const std::string& name) {
  Declared declared;
  asked = &declared;
  const int status = command.run({"--help"});
  asked = nullptr;
  REDLINE_CHECK(status == kDone && declared.name == name, "redline {} --help declares '{}'", name, declared.name);
  return declared;
}

}  // namespace

Declared* declaring() { return asked; }

std::vector<Declared> declared_commands() {
  std::vector<Declared> all;
  for (const Command& command : commands()) {
    all.push_back(declared_by(command, std::string(command.name)));
    const std::vector<Command> members = all.back().commands;
    for (const Command& member : members)
      all.push_back(declared_by(member, fmt::format("{} {}", command.name, member.name)));
  }
  return all;
}

}  // namespace redline::cli
