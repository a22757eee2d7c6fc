// Time for measuring: seconds on a clock that never goes back. Only differences mean something.
#pragma once

#include <chrono>

namespace redline {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace redline
