// The built-in tokenizers, which need no file: "bytes" and "ping" (data/byte_roles.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Null for a name that is not built in.
std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name);

// The tokenizer.json that gives the same ids to a text of valid UTF-8: what other programs read. Where redline meets
// one it is the built-in tokenizer again; that is known by its bytes, so what is written here stays as it is.
std::string built_in_tokenizer_json(std::string_view name);
std::shared_ptr<const Tokenizer> built_in_from_json(std::string_view json);  // null: it is none

}  // namespace redline::data
