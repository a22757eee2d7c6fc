// A count with its noun, as every sentence writes it: "1 file", "2 files", "0 batches".
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace redline {

// The noun of a count that is formatted elsewhere, as in "4,012,345 tokens". `noun` is the singular.
template <class Number>
std::string noun_for(Number n, std::string_view noun) {
  if (n == Number{1}) return std::string(noun);
  const bool hisses = noun.ends_with('s') || noun.ends_with('x') || noun.ends_with("ch") || noun.ends_with("sh");
  return std::string(noun) + (hisses ? "es" : "s");
}

template <std::integral Number>
std::string counted(Number n, std::string_view noun) {
  return fmt::format("{} {}", n, noun_for(n, noun));
}

}  // namespace redline
