// The tokenizer files beside a model, from which redline and transformers read and write its text: which files they
// are, and how the model uses the tokenizer.
#pragma once

#include <map>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

using TokenizerFiles = std::map<std::string, std::string>;  // name -> contents

// The files of a tokenizer, as open_tokenizer() takes its name, under the names that transformers expects: all of them
// from a folder, a single file alone, and a built-in tokenizer as an equivalent tokenizer.json.
TokenizerFiles tokenizer_files(FileSystem& files, const std::string& name);

// How a model was given the tokenizer's tokens.
struct TokenizerUse {
  std::optional<std::int32_t> end;  // closes a document
  std::int64_t pad = -1;            // the model's token for padding; -1: none, so that `end` pads
  std::int64_t max_length = 0;      // the model's positions
};
// Writes it into tokenizer_config.json, which is made where it is missing; other settings there stay. `tokenizer` is
// null where redline cannot read the files: then no token is named.
void describe_use(TokenizerFiles& files, const Tokenizer* tokenizer, const TokenizerUse& use);

}  // namespace redline::data
