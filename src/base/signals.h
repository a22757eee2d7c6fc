// Signals: a flag that asks work to end half-way, and sentences printed from inside a signal handler.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <string_view>

namespace redline {

// The work looks at it between its pieces.
using StopFlag = std::atomic<int>;  // a signal's number; 0: go on

struct Interrupted {};  // ends such work; no std::exception, since nothing is wrong

inline void end_if_asked(const StopFlag* stop) {
  if (stop && stop->load(std::memory_order_relaxed) != 0) throw Interrupted{};
}

// With the few calls that are safe in a handler.
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
