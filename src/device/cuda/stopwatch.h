// Time on the card between two points of a stream.
#pragma once

#include "device/cuda/handles.h"

namespace redline::device::cuda {

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream), begin_(make_event()), end_(make_event()) {}
  void start() const { REDLINE_CUDA(cudaEventRecord(begin_.get(), stream_)); }
  double stop() const {  // seconds; waits
    float ms = 0;
    REDLINE_CUDA(cudaEventRecord(end_.get(), stream_));
    REDLINE_CUDA(cudaEventSynchronize(end_.get()));
    REDLINE_CUDA(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return 1e-3 * ms;
  }

 private:
  cudaStream_t stream_;
  Event begin_, end_;
};

inline bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REDLINE_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace redline::device::cuda
