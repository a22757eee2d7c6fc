// Whether bytes are UTF-8, and where they stop being it.
#pragma once

#include <cstddef>
#include <string_view>

namespace redline::data {

// The length of the longest prefix that is well-formed UTF-8 (shortest forms only, no surrogates, nothing above
// U+10FFFF); text.size() when all of it is.
std::size_t valid_utf8(std::string_view text);

}  // namespace redline::data
