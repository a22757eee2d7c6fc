// Token ids of a mapped file, in the integer type of its format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace redline::data {

enum class TokenType { u8, i8, i16, u16, i32, u32, i64 };

std::int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);  // "uint16", as numpy has it

// The largest of ids, taken as unsigned; a negative id becomes a number above any vocabulary, so that one comparison
// finds both kinds of bad ids.
template <class T>
std::uint64_t largest_or_huge(std::make_unsigned_t<T> largest) {
  const bool negative =
      std::is_signed_v<T> && largest > static_cast<std::make_unsigned_t<T>>(std::numeric_limits<T>::max());
  return negative ? std::numeric_limits<std::uint64_t>::max() : static_cast<std::uint64_t>(largest);
}

// Little-endian, aligned to its type. A view: somebody else keeps the bytes.
struct TokenArray {
  const std::byte* data = nullptr;
  std::int64_t count = 0;
  TokenType type = TokenType::u16;

  std::int64_t at(std::int64_t i) const;
  // Adds ids [begin, end) to `to`. False when one is not in [0, vocabulary): `to` then holds nonsense.
  bool append(std::int64_t begin, std::int64_t end, std::int64_t vocabulary, std::vector<std::int32_t>& to) const;

  // Calls body(const T* ids) with the array's own type.
  template <class Body>
  auto visit(const Body& body) const {
    switch (type) {
      case TokenType::u8: return body(reinterpret_cast<const std::uint8_t*>(data));
      case TokenType::i8: return body(reinterpret_cast<const std::int8_t*>(data));
      case TokenType::i16: return body(reinterpret_cast<const std::int16_t*>(data));
      case TokenType::u16: return body(reinterpret_cast<const std::uint16_t*>(data));
      case TokenType::i32: return body(reinterpret_cast<const std::int32_t*>(data));
      case TokenType::u32: return body(reinterpret_cast<const std::uint32_t*>(data));
      case TokenType::i64: break;
    }
    return body(reinterpret_cast<const std::int64_t*>(data));
  }
};

}  // namespace redline::data
