// A line that is rewritten in place while something runs, and lines that stay. On a terminal the live line is
// there at once; in a file or pipe it becomes a line of its own only every few seconds, so that a log shows
// life and stays short.
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
  std::size_t columns() const;         // that a live line may fill
  void show(const std::string& text);  // live
  void keep(const std::string& text);  // for good
  void clear();                        // the live line, when there is one

 private:
  using Clock = std::chrono::steady_clock;
  void write(const std::string& text);

  std::FILE* stream_;
  bool terminal_;
  bool showing_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace redline::report
