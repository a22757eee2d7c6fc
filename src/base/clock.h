// Two clocks: one that never goes back, for measuring, and seconds since 1970, for files that others read.
#pragma once

#include <chrono>

namespace redline {

// Only differences mean something.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace redline
