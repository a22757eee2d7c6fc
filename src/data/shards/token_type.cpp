// Counts halves of words that are zero or small, and compares the lower halves with the upper ones.
#include "data/shards/token_type.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace redline::data {
namespace {

constexpr std::size_t kLookBlock = std::size_t{1} << 14, kLookBlocks = 256;
constexpr std::int64_t kEnough = 32;  // of words that are not zero
constexpr std::uint32_t kSmall = 64;  // upper halves of ids below 2^22 are below it
constexpr std::int64_t kNoVocabularyHas = std::int64_t{1} << 22;
constexpr std::int64_t kIdsOfUint16 = 65536;

// Over words of 32 bits that are ids: padding says nothing, be it zeros or negative numbers.
struct Halves {
  std::int64_t words = 0;
  std::int64_t low_some = 0, high_some = 0;      // not zero
  std::int64_t low_large = 0, high_large = 0;    // kSmall or more
  std::int64_t first_some = 0, second_some = 0;  // words at even and odd places that are not zero
  std::uint32_t largest = 0;

  void add(std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, bytes.data() + at, 4);
      const std::uint32_t low = word & 0xffff, high = word >> 16;
      if (word == 0 || high == 0xffff) continue;
      ++words;
      low_some += low != 0;
      high_some += high != 0;
      low_large += low >= kSmall;
      high_large += high >= kSmall;
      (at % 8 == 0 ? first_some : second_some) += 1;
      largest = std::max(largest, word);
    }
  }

  bool few() const { return low_some + high_some < 2 * kEnough; }
  // Both halves are drawn alike. Upper halves that are rarer by far than lower ones are those of wide ids.
  bool alike() const { return words > 0 && high_some * 8 >= low_some && high_large * 4 >= low_large; }
  // The upper halves are always zero; or always small where most lower ones are not.
  bool wide() const {
    if (high_some == 0) return low_some >= kEnough;
    return high_large == 0 && low_large >= kEnough && low_large * 2 >= words;
  }
};

Halves look_at(std::span<const std::byte> bytes) {
  Halves halves;
  if (bytes.size() > kLookBlock * kLookBlocks) {
    const std::size_t share = bytes.size() / kLookBlocks;
    for (std::size_t i = 0; i < kLookBlocks; ++i) halves.add(bytes.subspan(i * share / 8 * 8, kLookBlock));
    if (!halves.few()) return halves;
    halves = {};  // nearly all of it is padding
  }
  halves.add(bytes);
  return halves;
}

}  // namespace

TokenTypeGuess guess_token_type(std::span<const std::byte> bytes, std::int64_t vocabulary) {
  const Halves h = look_at(bytes);
  const std::int64_t limit = vocabulary > 0 ? vocabulary : kNoVocabularyHas;
  const bool below = h.largest < limit, narrow = vocabulary <= kIdsOfUint16;
  if (h.words == 0 && bytes.size() >= 4) return {{}, true, "it holds nothing but padding"};
  // A word at an odd place that is not zero would make an id of 64 bits above 2^32.
  if (below && (h.wide() || (!narrow && h.second_some > 0))) {
    if (h.second_some * 8 >= h.first_some) return {TokenType::u32};
    if (h.second_some == 0 && h.first_some >= kEnough) return {TokenType::i64};
    return {{}, h.few(), "its words are neither those of uint32 ids nor those of int64 ids"};
  }
  if (!narrow)
    return {{},
            h.few(),
            fmt::format("a vocabulary of {} needs a wider type than uint16, and its words are not ids of "
                        "one",
                        vocabulary)};
  if (h.alike() || (h.few() && bytes.size() % 4 != 0)) return {TokenType::u16};
  if (h.few()) return {{}, true, "it is too short to tell"};
  if (h.wide())
    return {{},
            false,
            fmt::format("its words look like ids of a wider type than uint16, but for one of {}, which is "
                        "not below {}",
                        h.largest, vocabulary > 0 ? "the vocabulary" : "any vocabulary")};
  return {{}, false, "its words look neither like uint16 nor like ids of a wider type"};
}

std::optional<TokenType> token_type_named(std::string_view name) {
  for (const TokenType type : {TokenType::u16, TokenType::u32, TokenType::i64})
    if (name == name_of(type)) return type;
  REDLINE_CHECK(name == kAnyTokenType, "no type of tokens is called {}", name);
  return {};
}

}  // namespace redline::data
