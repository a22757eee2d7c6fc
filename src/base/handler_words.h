// Prints a sentence from inside a signal handler, with the few calls that are safe there.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace redline {

inline void say_in_handler(std::initializer_list<std::string_view> sentence) {
  const auto say = [](std::string_view text) {
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  };
  if (::isatty(STDERR_FILENO) == 1) say("\n");  // after a live line and the terminal's ^C
  for (std::string_view text : sentence) {
    for (char shown[256]; !text.empty(); text.remove_prefix(std::min(text.size(), sizeof shown))) {
      const std::string_view part = text.substr(0, sizeof shown);  // a path may hold what steers a terminal
      std::ranges::transform(part, shown, [](char c) { return static_cast<unsigned char>(c) < ' ' ? '?' : c; });
      say({shown, part.size()});
    }
  }
  say("\n");
}

// The last sentence of a process that a signal ends.
[[noreturn]] inline void last_words(std::initializer_list<std::string_view> sentence, int status) {
  say_in_handler(sentence);
  ::_exit(status);
}

}  // namespace redline
