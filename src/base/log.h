// One-line messages to standard error, for what a person should know while a command runs. Figures and progress are
// report/'s; standard output belongs to the commands.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace redline::log {

void note_line(std::string_view text);  // "redline: text"
void warn_line(std::string_view text);  // "redline: warning: text"

template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  note_line(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  warn_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace redline::log
