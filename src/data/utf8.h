// UTF-8 as bytes: its validity, its code points, and a replacement for bytes that are no text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace redline::data {

// The length of the longest prefix that is well-formed UTF-8 (shortest forms only, no surrogates, nothing above
// U+10FFFF).
std::size_t valid_utf8(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8(text) == text.size(); }

// Bad bytes become U+FFFD, one for each longest part that could have begun a character.
std::string replace_bad_utf8(std::string text);

struct CodePoint {
  std::uint32_t value;
  std::uint32_t size;  // bytes
};

// The text is valid and not at its end.
inline CodePoint decode_utf8(const char* at) {
  const auto byte = [at](int i) { return std::uint32_t{static_cast<unsigned char>(at[i])}; };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// Where the character before `at` begins; `at` is inside valid text and not its beginning.
inline const char* previous_utf8(const char* at) {
  do --at;
  while ((static_cast<unsigned char>(*at) & 0xc0) == 0x80);
  return at;
}

void append_utf8(std::uint32_t code_point, std::string& to);

}  // namespace redline::data
