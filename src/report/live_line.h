// Lines that show how far something is. A terminal shows a live line at once; a file or pipe gets it as a new line
// every few seconds, so that a log shows life and stays short.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace redline::report {

// A line that is rewritten in place while something runs, and lines that stay.
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

inline constexpr double kQuietSeconds = 2;  // shorter work needs no line

// The progress of reading or writing weights: "loading weights: 34.0% of 3.17 GiB, 5.2 s left".
class BytesProgress {
 public:
  explicit BytesProgress(std::string doing, double quiet = kQuietSeconds) : doing_(std::move(doing)), quiet_(quiet) {}
  void show(LiveLine& line, std::uint64_t done, std::uint64_t of);  // time counts from the call with `done` 0

  static std::string text(const std::string& doing, std::uint64_t done, std::uint64_t of, double seconds);

 private:
  std::string doing_;
  double quiet_;
  double start_ = -1;
};

// The same on a line of its own on standard error. It appears after a moment, and is gone when all bytes are there.
struct BytesLine {
  explicit BytesLine(std::string doing, double quiet = kQuietSeconds) : bytes(std::move(doing), quiet) {}

  std::function<void(std::uint64_t done, std::uint64_t of)> progress() {
    return [this](std::uint64_t done, std::uint64_t of) {
      bytes.show(line, done, of);
      if (done >= of) line.clear();
    };
  }

  BytesProgress bytes;
  LiveLine line{stderr};
};

// A live line about work that cannot stop to report. A thread of its own asks for the text and shows it.
class BackgroundLine {
 public:
  using Text = std::function<std::string(double seconds)>;  // since the line was made; empty: nothing to say now

  // A thread calls `text` from `quiet` seconds on. `text` and everything it uses must outlive the line.
  BackgroundLine(LiveLine& line, Text text, double quiet = kQuietSeconds)
      : line_(line), text_(std::move(text)), thread_([this, quiet] { show(quiet); }) {}
  ~BackgroundLine();  // removes the line
  BackgroundLine(const BackgroundLine&) = delete;
  BackgroundLine& operator=(const BackgroundLine&) = delete;

 private:
  void show(double quiet);

  LiveLine& line_;
  Text text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace redline::report
