// A flag that asks work to end half-way. The work looks at it between its pieces.
#pragma once

#include <atomic>

namespace redline {

using StopFlag = std::atomic<int>;  // a signal's number; 0: go on

struct Interrupted {};  // ends such work; no std::exception, since nothing is wrong

inline void end_if_asked(const StopFlag* stop) {
  if (stop && stop->load(std::memory_order_relaxed) != 0) throw Interrupted{};
}

}  // namespace redline
