// The alphabet of byte-level vocabularies: each byte is written as one printable character.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redline::data {

std::uint32_t character_of_byte(unsigned char byte);

// The bytes that a token's characters stand for; none where one is outside the alphabet. `token` is valid UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);
std::string token_of_bytes(std::string_view bytes);

}  // namespace redline::data
