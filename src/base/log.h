// One-line messages to standard error, for the person who runs a command. Metrics and progress belong to report/, and
// standard output belongs to the commands.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace redline::log {

void note_line(std::string_view text);  // "redline: text"
void warn_line(std::string_view text);  // "redline: warning: text"

// Writes the line to standard error, past any listener.
void write_line(bool warning, std::string_view text);

// Receives the lines of all threads in place of standard error while it lives, one at a time. It writes them itself
// when it is ready.
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
