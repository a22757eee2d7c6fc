// Text to a folder of token shards, whole or not at all.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/input/text_input.h"
#include "data/shards/shards.h"

namespace redline::data {

struct PrepareSettings {
  std::vector<std::string> inputs;  // files, folders, patterns
  InputFormat format;
  std::string tokenizer;
  std::string chat = "none";  // how conversations are written, as data.chat has it
  std::string bos = "auto";   // the token before a document, as data.bos has it
  Path out;
  double val_fraction = 0;                            // of documents, as a chance of each
  std::int64_t shard_tokens = std::int64_t{1} << 27;  // 256 MiB of uint16
  int threads = 0;                                    // 0: all cores
  bool skip_bad = false;                              // count malformed documents and go on
  std::optional<std::int32_t> end_token = {};         // instead of the tokenizer's own
  bool no_end_token = false;
  bool roles = true;                                 // names of files in folders say what they are for (data/roles.h)
  std::optional<PreparedFolder> same_input_as = {};  // whose inputs these must be, byte for byte
};

struct PrepareProgress {
  std::int64_t bytes_read = 0, bytes_on_disk = 0;  // of the input files
  std::int64_t documents = 0, tokens = 0, text_bytes = 0;
  double seconds = 0;
};

struct Prepared {
  bool stopped = false;       // by the caller: nothing is left
  bool started_over = false;  // the remains of an interrupted run were removed
  Manifest manifest;
  PrepareProgress total;
  int threads = 0;
  std::vector<std::string> problems;  // the first few that were skipped
  std::vector<std::string> by_role;   // sentences about files that were held out or left aside by their names
};

// Checks `stop` all the time and calls `show` often. A UserError or MachineError leaves nothing either.
Prepared prepare(FileSystem& files, const PrepareSettings& settings, const std::atomic<int>& stop,
                 const std::function<void(const PrepareProgress&)>& show);

}  // namespace redline::data
