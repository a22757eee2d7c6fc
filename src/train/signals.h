// SIGINT and SIGTERM ask a run to finish its step, save and end. A second one ends it at once, as without us.
#pragma once

#include <atomic>

namespace redline::train {

// The signal that a handler of SIGINT and SIGTERM has heard. All of it may be called in one.
class CaughtSignal {
 public:
  // The first one is remembered; a later one ends the process as without us. One that follows at once is the same: `timeout`
  // sends a signal to the process, and then to its whole group.
  void hear(int number);
  void forget();
  const std::atomic<int>& number() const { return number_; }  // 0: none

 private:
  static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);
  std::atomic<int> number_ = 0;
  std::atomic<double> heard_at_ = 0;  // steady seconds; 0: none
};

// Installed while it lives; one at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  const std::atomic<int>& caught() const;  // 0: none
};

}  // namespace redline::train
