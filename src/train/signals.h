// SIGINT and SIGTERM ask a run to finish its step, save and end. A second one ends it at once, as without us.
#pragma once

#include <atomic>

namespace redline::train {

// Installed while it lives; one at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  const std::atomic<int>& caught() const;  // 0: none
};

}  // namespace redline::train
