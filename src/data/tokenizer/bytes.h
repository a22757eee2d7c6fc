// The built-in tokenizers, which need no file: "bytes" and "ping" (data/byte_roles.h).
#pragma once

#include <memory>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// Null for a name that is not built in.
std::shared_ptr<const Tokenizer> built_in_tokenizer(std::string_view name);

}  // namespace redline::data
