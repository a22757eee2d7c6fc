// Named ranges that Nsight Systems shows (nsys profile -t cuda,nvtx redline profile ...). NVTX's headers come with the
// CUDA toolkit; a call is a few nanoseconds where nobody listens. Without the headers a range is nothing.
#pragma once

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace redline::device::cuda {

// From its making to its end, on the thread that queues the work.
class [[nodiscard]] Range {
 public:
#ifdef NVTX_VERSION
  explicit Range(const char* name) { nvtxRangePushA(name); }
  ~Range() { nvtxRangePop(); }
#else
  explicit Range(const char*) {}
  ~Range() {}
#endif
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace redline::device::cuda
