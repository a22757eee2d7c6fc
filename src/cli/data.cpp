// redline data.
#include "cli/command_group.h"

namespace redline::cli {

int run_data(const Words& words) {
  static constexpr Command kCommands[] = {
      {"prepare", "text to token shards", run_data_prepare},
      {"stats", "how long documents are, what padding would waste, and what packing saves", run_data_stats},
  };
  return run_group({"data",
                    "from text to what training reads",
                    kCommands,
                    {"redline data prepare --tokenizer tokenizer.json --out data/wiki wiki/*.jsonl.zst",
                     "redline data stats data/wiki --seq-len 1024"}},
                   words);
}

}  // namespace redline::cli
