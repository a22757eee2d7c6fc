// redline data: which of its commands is meant.
#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "config/load.h"

namespace redline::cli {
namespace {

constexpr Command kDataCommands[] = {
    {"prepare", "text to token shards", run_data_prepare},
    {"stats", "how long documents are, what padding would waste, and what packing saves", run_data_stats},
};

void print_help() {
  print("redline data: from text to what training reads\n\nUsage: redline data COMMAND [...]\n\nCommands:\n");
  for (const Command& c : kDataCommands) print(fmt::format("  {:<9} {}\n", c.name, c.purpose));
  print(
      "\nFor example:\n"
      "  redline data prepare --tokenizer tokenizer.json --out data/wiki wiki/*.jsonl.zst\n"
      "  redline data stats data/wiki --seq-len 1024\n"
      "\n`redline data COMMAND --help` tells about one command.\n");
}

}  // namespace

int run_data(const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    print_help();
    return kDone;
  }
  const auto command = std::ranges::find(kDataCommands, words[0], &Command::name);
  if (command != std::end(kDataCommands)) return command->run(Words(words.begin() + 1, words.end()));
  std::vector<std::string> names;
  for (const Command& c : kDataCommands) names.emplace_back(c.name);
  const std::string guess = config::nearest(words[0], names);
  fail_user("unknown command 'data {}'; {}", words[0],
            guess.empty() ? "see redline data --help" : fmt::format("did you mean 'data {}'?", guess));
}

}  // namespace redline::cli
