// Byte-level BPE from a Hugging Face tokenizer.json (docs/data.md says what of it is supported).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace redline::data {

// `name` is the tokenizer's own and leads its UserErrors. `end_token`: the content of the special token that closes a
// document, as files beside it say; empty: the one known by name.
std::shared_ptr<const Tokenizer> bpe_tokenizer(std::string_view json, const std::string& name,
                                               std::string_view end_token = {});

}  // namespace redline::data
