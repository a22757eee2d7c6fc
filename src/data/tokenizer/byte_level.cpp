// Printable bytes of Latin-1 stand for themselves, the others take characters from U+0100 on, in order.
#include "data/tokenizer/byte_level.h"

#include "data/utf8.h"

namespace redline::data {
namespace {

struct Alphabet {
  std::array<std::uint32_t, 256> character{};
  std::array<std::int16_t, 512> byte{};  // -1: no byte

  constexpr Alphabet() {
    for (auto& b : byte) b = -1;
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xff && b != 0xad);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::uint32_t character_of_byte(unsigned char byte) { return kAlphabet.character[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint c = decode_utf8(token.data() + at);
    if (c.value >= kAlphabet.byte.size() || kAlphabet.byte[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[c.value]);
    at += c.size;
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char b : bytes) append_utf8(character_of_byte(static_cast<unsigned char>(b)), token);
  return token;
}

}  // namespace redline::data
