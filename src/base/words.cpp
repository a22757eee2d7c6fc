// visible(), character by character; nearly all text comes out as it went in.
#include "base/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace redline {
namespace {

// The character that begins at the front; of no bytes where there is none.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<unsigned char>(text[i])}; };
  const std::uint32_t lead = byte(0);
  const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  std::uint32_t code = bytes < 2 ? lead : lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[bytes] || code > 0x10ffff || surrogate ? Character{} : Character{code, bytes};
}

bool steers(std::uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool turns = c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
  return (control && c != '\n' && c != '\t') || turns;
}

}  // namespace

std::string visible(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = first_of(text);
    const std::size_t bytes = std::max<std::size_t>(c.bytes, 1);
    if (c.bytes > 0 && !steers(c.code))
      out += text.substr(0, bytes);
    else if (c.code < 0x80)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    else
      out += fmt::format("\\u{:04x}", c.code);
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace redline
