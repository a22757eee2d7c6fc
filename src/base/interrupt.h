// How work that may be dropped half-way is asked to end: a flag that it looks at between its pieces.
#pragma once

#include <atomic>

namespace redline {

using StopFlag = std::atomic<int>;  // a signal's number; 0: go on

struct Interrupted {};  // what such work ends with; no std::exception, since nothing is wrong

inline void end_if_asked(const StopFlag* stop) {
  if (stop && stop->load(std::memory_order_relaxed) != 0) throw Interrupted{};
}

}  // namespace redline
