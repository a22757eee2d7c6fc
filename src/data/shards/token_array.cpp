// Widening of token ids, checked in the same pass.
#include "data/shards/token_array.h"

#include <bit>
#include <type_traits>

#include "base/error.h"

namespace redline::data {

static_assert(std::endian::native == std::endian::little, "files of tokens are read in place");

std::int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8: return 1;
    case TokenType::i16:
    case TokenType::u16: return 2;
    case TokenType::i32:
    case TokenType::u32: return 4;
    case TokenType::i64: break;
  }
  return 8;
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::u8: return "uint8";
    case TokenType::i8: return "int8";
    case TokenType::i16: return "int16";
    case TokenType::u16: return "uint16";
    case TokenType::i32: return "int32";
    case TokenType::u32: return "uint32";
    case TokenType::i64: break;
  }
  return "int64";
}

std::int64_t TokenArray::at(std::int64_t i) const {
  REDLINE_CHECK(i >= 0 && i < count, "token {} of {}", i, count);
  return visit([i](const auto* ids) { return static_cast<std::int64_t>(ids[i]); });
}

bool TokenArray::append(std::int64_t begin, std::int64_t end, std::int64_t vocabulary,
                        std::vector<std::int32_t>& to) const {
  REDLINE_CHECK(begin >= 0 && begin <= end && end <= count, "tokens {} to {} of {}", begin, end, count);
  return visit([&](const auto* ids) {
    using Id = std::remove_cvref_t<decltype(*ids)>;
    using Unsigned = std::make_unsigned_t<Id>;
    to.insert(to.end(), ids + begin, ids + end);
    Unsigned largest = 0;  // found by vector code
    for (std::int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<Unsigned>(ids[i]);
      largest = id > largest ? id : largest;
    }
    return begin == end || largest_or_huge<Id>(largest) < static_cast<std::uint64_t>(vocabulary);
  });
}

}  // namespace redline::data
