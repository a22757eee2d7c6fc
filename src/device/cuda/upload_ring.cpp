// Segments of pinned memory, filled one after the other.
#include "device/cuda/upload_ring.h"

#include <cstring>

namespace redline::device::cuda {

UploadRing::UploadRing() : pinned_(pinned_bytes(kSegments * kSegmentBytes)) {
  for (Event& event : read_) event = make_event(cudaEventDisableTiming);
}

void UploadRing::copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  const auto size = static_cast<std::size_t>(bytes);
  if (bytes > kSegmentBytes) {  // weights and moments, at the start of a run: waiting costs nothing there
    REDLINE_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream));
    REDLINE_CUDA(cudaStreamSynchronize(stream));
    return;
  }
  if (used_ + bytes > kSegmentBytes) next_segment(stream);
  std::byte* staged = pinned_.get() + static_cast<std::int64_t>(segment_) * kSegmentBytes + used_;
  std::memcpy(staged, from, size);
  REDLINE_CUDA(cudaMemcpyAsync(to, staged, size, cudaMemcpyHostToDevice, stream));
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void UploadRing::next_segment(cudaStream_t stream) {
  REDLINE_CUDA(cudaEventRecord(read_[segment_].get(), stream));
  segment_ = (segment_ + 1) % kSegments;
  REDLINE_CUDA(cudaEventSynchronize(read_[segment_].get()));  // an event that was never recorded has happened
  used_ = 0;
}

}  // namespace redline::device::cuda
