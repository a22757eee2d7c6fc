// Files of text to lines of token ids, and back: the work of `redline tokenize`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

struct Conversion {
  bool decode = false;     // ids to text; else text to ids
  bool jsonl = false;      // one JSON object a line: {"text": "..."} and {"ids": [...]}
  bool any_bytes = false;  // a text may hold bytes of any kind
};

// How far a conversion is. Any thread may read it meanwhile.
struct ConversionProgress {
  std::atomic<std::uint64_t> read = 0, converted = 0;  // bytes of the files
  std::atomic<bool> waiting = false;                   // for bytes of a file or a pipe
};

// Converts the files in their order; "-" is standard input. Without `decode` and `jsonl` a file is one text, whose ids
// become one line. Otherwise lines are converted on all cores and keep their order. `print` gets whole lines and says
// whether it wants more. A file that cannot be opened and a line that cannot be converted are a UserError with the
// file's name and the line's number.
void convert_files(const Tokenizer& tokenizer, const std::vector<std::string>& files, const Conversion& conversion,
                   const std::function<bool(std::string_view lines)>& print, ConversionProgress& progress);

}  // namespace redline::data
