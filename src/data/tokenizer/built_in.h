// The built-in tokenizers, which need no file: "bytes" and "ping" (data/byte_vocabulary.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Null for a name that is not built in.
std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name);

// The tokenizer.json that gives other programs the same ids for valid UTF-8. redline recognises such a file by its
// bytes and takes the built-in tokenizer again, so these bytes must never change.
std::string built_in_tokenizer_json(std::string_view name);
std::shared_ptr<const Tokenizer> built_in_from_json(std::string_view json);  // null: it is none

}  // namespace redline::data
