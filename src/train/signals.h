// SIGINT, SIGTERM and SIGHUP ask a run to save and end. A later one ends it at once, by the signal's default effect.
#pragma once

#include "base/signals.h"

namespace redline::train {

// The signals that a handler has caught. All functions may be called in a handler.
class CaughtSignal {
 public:
  // Returns the count of signals so far, from 1. The same signal again at once counts as one and returns 0: `timeout`
  // sends it to the process, and then to its whole group.
  int hear(int number);
  void forget();
  const StopFlag& number() const { return number_; }  // of the first; 0: none

 private:
  static_assert(StopFlag::is_always_lock_free && std::atomic<double>::is_always_lock_free);
  StopFlag number_ = 0;
  std::atomic<int> last_ = 0, times_ = 0;
  std::atomic<double> heard_at_ = 0;  // steady seconds; 0: none
};

void end_as_without_us(int number);  // by the signal's default effect; may be called in a handler

// Handlers are installed while it lives, except for signals that the process was started to ignore. One at a time.
class StopSignals {
 public:
  // to_stop: the first signal is caught, the next one ends the process. to_stop_then_to_drop: Ctrl-C asks a run to stop
  // after its step, and again to drop the step; SIGTERM and SIGHUP, whose senders do not wait long, ask for both at
  // once. Each request is confirmed at once, and the signal after the last ends the process.
  enum class Asked { to_stop, to_stop_then_to_drop };
  explicit StopSignals(Asked asked = Asked::to_stop);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  const StopFlag& caught() const;
  const StopFlag& drop() const;
};

}  // namespace redline::train
