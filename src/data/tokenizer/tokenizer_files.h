// The files that stand beside a model so that redline and transformers read and write its text: which belong to a
// tokenizer, and what they say of its use.
#pragma once

#include <map>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

using TokenizerFiles = std::map<std::string, std::string>;  // name -> what is in it

// Those of the tokenizer that `name` means (as open_tokenizer() takes it), under the names that transformers looks for:
// a folder's with all that belongs to them, a file of another name alone, a built-in one as the tokenizer.json that
// does the same.
TokenizerFiles tokenizer_files(FileSystem& files, const std::string& name);

// How a model was given the tokenizer's tokens.
struct TokenizerUse {
  std::optional<std::int32_t> end;  // what closes a document
  std::int64_t pad = -1;            // the model's token for padding; -1: none, so that `end` pads
  std::int64_t max_length = 0;      // the model's positions
};
// Says so in tokenizer_config.json, which is made where it is missing; what else is there stays. `tokenizer` is null
// where redline cannot read the files: then no token is named.
void describe_use(TokenizerFiles& files, const Tokenizer* tokenizer, const TokenizerUse& use);

}  // namespace redline::data
