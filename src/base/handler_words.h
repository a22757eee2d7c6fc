// A sentence from inside a signal handler: the few calls that may be made there.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <string_view>

namespace redline {

inline void say_in_handler(std::initializer_list<std::string_view> sentence) {
  const auto say = [](std::string_view text) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  };
  if (::isatty(STDERR_FILENO) == 1) say("\n");  // after a live line and the terminal's ^C
  for (const std::string_view text : sentence) say(text);
  say("\n");
}

}  // namespace redline
