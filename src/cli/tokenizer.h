// A tokenizer from text in two steps: the pieces of the text are counted, and then merged. For
// `redline tokenizer train` and for a run on a folder of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/input/text_input.h"
#include "data/tokenizer/train_bpe.h"

namespace redline::cli {

struct CountedText {
  std::int64_t bytes = 0;  // of text that was read
  double share = 1;        // of the files' bytes that it stands for
  std::string sample;      // some of it
  std::int64_t skipped = 0;
  std::string first_skipped;
  std::vector<data::CountedPiece> pieces;
};

inline constexpr std::int64_t kAllText = std::int64_t{1} << 62;

struct TextToCount {
  std::vector<std::string> inputs;
  data::InputFormat format;
  bool skip_bad = false;                     // a malformed document is passed over and counted, else a UserError
  std::string skipping = "--on-error skip";  // what asks for that
  bool pieces = true;                        // false: a tokenizer is there, and the text may be bytes of any kind
};

// Shows a progress line, and ends with the first documents that reach `most_bytes`.
CountedText count_text(const TextToCount& text, const data::TrainFamily& family,
                       const std::vector<std::string>& specials, std::int64_t most_bytes = kAllText);
// `vocabulary` tokens without special ones, with a progress line.
data::TrainedBpe merge_pieces(const std::vector<data::CountedPiece>& pieces, std::int64_t vocabulary);

}  // namespace redline::cli
