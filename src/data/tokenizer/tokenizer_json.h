// A parsed Hugging Face tokenizer.json of byte-level BPE. Untrusted bytes stop here: a malformed file, or one with a
// feature that redline does not have, is a UserError that names the file and the feature.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/split.h"

namespace redline::data {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// One step from text to pieces.
struct SplitStage {
  std::shared_ptr<const SplitPattern> pattern;  // null: each piece stays whole
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;        // the text between matches counts as the match
  bool prefix_space = false;  // a space before a piece that does not begin with one; in the last stage only
};

struct TokenizerJson {
  BpeModel model;
  std::vector<std::string> model_tokens;  // by id, as bytes; model.tokens points into them
  std::vector<std::string> text_of_id;    // as decoding gives it
  std::vector<bool> has_id;
  std::vector<AddedToken> raw_added, normalized_added;
  bool nfc = false;
  std::vector<SplitStage> stages;
  bool decodes = false;                 // has the ByteLevel decoder
  std::vector<std::int32_t> beginning;  // put before a text by its template

  std::int32_t id_of(std::string_view content) const;  // of an added token; -1: none
};

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file);

}  // namespace redline::data
