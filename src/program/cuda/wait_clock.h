// Counts how long a card's stream waited for other ranks. The card itself counts: a host would have to wait for it, and
// a captured graph runs without a host. The sum is in host memory, where it can be read at any time.
#pragma once

#include <cstdint>

#include "device/cuda/handles.h"

namespace redline::program {

class WaitClock {
 public:
  WaitClock();

  // Called before and after the nodes that a stream waits in; one wait at a time.
  void begin(cudaStream_t stream) const;
  void end(cudaStream_t stream) const;
  double seconds() const;  // of all waits that have ended so far

 private:
  device::cuda::PinnedBytes bytes_;  // two std::uint64_t, nanoseconds: when the wait began, and the sum
};

}  // namespace redline::program
