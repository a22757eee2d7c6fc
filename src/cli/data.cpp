// redline data: what follows is the command of that name.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace redline::cli {

int run_data(const Words& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    print(
        "redline data: what to train on\n\nUsage: redline data stats DIR --seq-len N\n\n"
        "  stats  how long documents are, what padding would waste, and what packing saves\n"
        "\nFor example:\n  redline data stats ping --seq-len 1024\n");
    return kDone;
  }
  if (words[0] == "stats") return run_data_stats({words.begin() + 1, words.end()});
  fail_user("unknown command 'data {}'; there is 'data stats'", words[0]);
}

}  // namespace redline::cli
