// A line that is rewritten in place while something runs, and lines that stay. A terminal shows the live line at once.
// A file or pipe gets it as a new line every few seconds, so that a log shows life and stays short.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace redline::report {

class LiveLine {
 public:
  explicit LiveLine(std::FILE* stream);  // asks the stream whether it is a terminal
  LiveLine(std::FILE* stream, bool terminal);
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  bool terminal() const { return terminal_; }
  std::size_t columns() const;         // available to a live line
  void show(const std::string& text);  // rewrites the live line
  void keep(const std::string& text);  // adds a line that stays
  void clear();                        // removes the live line

 private:
  using Clock = std::chrono::steady_clock;
  void write(const std::string& text);

  std::FILE* stream_;
  bool terminal_;
  bool showing_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace redline::report
