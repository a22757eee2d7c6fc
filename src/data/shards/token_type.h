// The integer type of token ids in a file without a header, as its words show. Nothing else about such a file tells it,
// and a wide type that is read as uint16 gives a zero behind every id and a loss that looks better.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/shards/token_documents.h"

namespace redline::data {

inline constexpr std::string_view kAnyTokenType = "auto";

struct TokenTypeGuess {
  std::optional<TokenType> type;  // uint16, uint32 or int64; nothing: the words do not say
  bool few = false;               // because there are too few of them that are not zero
  std::string why = {};           // "its words are ...": for the sentence that asks
};

// Looks at 4 MiB, spread over all of the file. `vocabulary`: of the model or the tokenizer; 0: not known. Ids of a
// wide type are below it, or below 2^22 where it is not known; one above 65,536 rules uint16 out. Two neighbours in a
// row of uint16 are drawn alike, while the upper half of a wide id is always small: so 32 words settle it.
TokenTypeGuess guess_token_type(std::span<const std::byte> bytes, std::int64_t vocabulary);

// "uint16", "uint32" or "int64"; nothing for "auto".
std::optional<TokenType> token_type_named(std::string_view name);

}  // namespace redline::data
