// Bars and paragraphs for a terminal.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

namespace redline::report {

// A bar with a precision of an eighth of a column where the terminal has block characters, else of '#'.
inline std::string bar(double columns, bool blocks) {
  constexpr std::string_view kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string out;
  if (!blocks) return std::string(static_cast<std::size_t>(std::lround(columns)), '#');
  const auto eighths = static_cast<std::size_t>(std::lround(8 * columns));
  for (std::size_t i = 0; i < eighths / 8; ++i) out += "█";
  return out += kEighths[eighths % 8];
}

// The same in two parts, in whole columns: the needed share, and the rest.
inline std::string bar_of_two(double needed, double rest, bool blocks) {
  const auto until = static_cast<std::size_t>(std::lround(needed));
  const auto all = static_cast<std::size_t>(std::lround(needed + rest));
  std::string out;
  for (std::size_t i = 0; i < all; ++i) out += i < until ? (blocks ? "█" : "#") : (blocks ? "░" : "-");
  return out;
}

// Words over several lines of up to 100 columns, indented under what leads them.
inline std::string paragraph(std::string_view lead, std::string_view words) {
  constexpr std::size_t kColumns = 100;
  std::string out, line(lead);
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find(' ', at), words.size());
    const std::string_view word = words.substr(at, end - at);
    if (line.size() > lead.size() && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line = std::string(lead.size(), ' ');
    }
    if (!line.empty() && line.back() != ' ') line += ' ';
    line += word;
    at = end + 1;
  }
  return out + line + "\n";
}

}  // namespace redline::report
