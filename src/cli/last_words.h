// The last sentence of a process that a signal ends. All of it may be called in a handler.
#pragma once

#include <unistd.h>

#include <initializer_list>
#include <string_view>

namespace redline::cli {

[[noreturn]] inline void last_words(std::initializer_list<std::string_view> sentence, int status) {
  const auto say = [](std::string_view text) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  };
  if (::isatty(STDERR_FILENO) == 1) say("\n");  // after a live line and the terminal's ^C
  for (const std::string_view text : sentence) say(text);
  say("\n");
  ::_exit(status);
}

}  // namespace redline::cli
