// SIGINT, SIGTERM and SIGHUP ask a run to put itself in order and end. A later one ends it at once, as without us.
#pragma once

#include "base/interrupt.h"

namespace redline::train {

// The signals that a handler has heard. All of it may be called in one.
class CaughtSignal {
 public:
  // The how manieth it is, from 1. The same number again at once is the same signal, and 0: `timeout` sends one to the
  // process, and then to its whole group.
  int hear(int number);
  void forget();
  const StopFlag& number() const { return number_; }  // of the first; 0: none

 private:
  static_assert(StopFlag::is_always_lock_free && std::atomic<double>::is_always_lock_free);
  StopFlag number_ = 0;
  std::atomic<int> last_ = 0, times_ = 0;
  std::atomic<double> heard_at_ = 0;  // steady seconds; 0: none
};

void end_as_without_us(int number);  // by the signal's own way; may be called in a handler

// Installed while it lives, for those that the process was not started to ignore; one at a time.
class StopSignals {
 public:
  // to_stop: the first is caught, the next one ends the process. to_stop_then_to_drop: Ctrl-C asks a run to stop behind
  // its step, again to drop the step; SIGTERM and SIGHUP, whose sender does not wait long, ask for both at once. What
  // was asked is said at once, and the signal after that ends the process.
  enum class Asked { to_stop, to_stop_then_to_drop };
  explicit StopSignals(Asked asked = Asked::to_stop);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  const StopFlag& caught() const;
  const StopFlag& drop() const;
};

}  // namespace redline::train
