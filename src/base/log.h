// One-line messages to standard error, for what a person should know while a command runs. Figures and progress are
// report/'s; standard output belongs to the commands.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace redline::log {

void note_line(std::string_view text);  // "redline: text"
void warn_line(std::string_view text);  // "redline: warning: text"

// The line on standard error, whoever listens.
void write_line(bool warning, std::string_view text);

// Takes the lines instead of standard error while it lives, from whatever thread they come; one at a time. It writes
// them itself when it is ready for them.
class Listener {
 public:
  using Take = std::function<void(bool warning, std::string_view text)>;
  explicit Listener(Take take);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
};

template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  note_line(fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  warn_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace redline::log
