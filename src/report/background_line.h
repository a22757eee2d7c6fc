// A live line about work that cannot stop to report. A thread of its own asks for the text and shows it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "report/bytes_progress.h"
#include "report/live_line.h"

namespace redline::report {

class BackgroundLine {
 public:
  using Text = std::function<std::string(double seconds)>;  // since the line was made; empty: nothing to say now

  // A thread calls `text` from `quiet` seconds on. `text` and everything it uses must outlive the line.
  BackgroundLine(LiveLine& line, Text text, double quiet = BytesProgress::kQuiet)
      : line_(line), text_(std::move(text)), thread_([this, quiet] { show(quiet); }) {}
  // Removes the line.
  ~BackgroundLine() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
    line_.clear();
  }
  BackgroundLine(const BackgroundLine&) = delete;
  BackgroundLine& operator=(const BackgroundLine&) = delete;

 private:
  void show(double quiet) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    for (std::chrono::duration<double> pause(quiet); !changed_.wait_for(lock, pause, [this] { return over_; });
         pause = std::chrono::milliseconds(100)) {
      const std::string text = text_(std::chrono::duration<double>(Clock::now() - start).count());
      if (!text.empty()) line_.show(text);
    }
  }

  LiveLine& line_;
  Text text_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace redline::report
