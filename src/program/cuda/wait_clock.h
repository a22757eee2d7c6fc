// How long a card's stream stood still for other ranks, counted by the card itself: a host that asked would have to
// wait for it, and a captured graph runs without one. The sum stands in host memory, where reading it waits for
// nothing.
#pragma once

#include <cstdint>

#include "device/cuda/handles.h"

namespace redline::program {

class WaitClock {
 public:
  WaitClock();

  // Around what a stream waits for; one wait at a time.
  void begin(cudaStream_t stream) const;
  void end(cudaStream_t stream) const;
  double seconds() const;  // of all waits that have ended so far

 private:
  device::cuda::PinnedBytes bytes_;  // two std::uint64_t, nanoseconds: when the wait began, and the sum
};

}  // namespace redline::program
