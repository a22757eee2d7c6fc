// Segments of pinned memory, filled one after the other.
#include "device/cuda/upload_ring.h"

#include <cstring>

#include "base/dtype.h"

namespace redline::device::cuda {

UploadRing::UploadRing()
    : pinned_(pinned_bytes(kSegments * kSegmentBytes)),
      staging_(try_device_bytes(kSegments * kSegmentBytes)),
      copies_(make_stream()),
      arrived_(make_event(cudaEventDisableTiming)) {
  if (!staging_) fail_machine("no {} MiB are free on the card", kSegments * kSegmentBytes >> 20);
  for (Event& event : read_) event = make_event(cudaEventDisableTiming);
}

void UploadRing::copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream) {
  for (; bytes > kSegmentBytes; bytes -= kSegmentBytes) {  // weights and moments, at the start of a run
    copy(to, from, kSegmentBytes, stream);
    to = static_cast<std::byte*>(to) + kSegmentBytes;
    from = static_cast<const std::byte*>(from) + kSegmentBytes;
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (used_ + bytes > kSegmentBytes) next_segment(stream);
  const std::int64_t at = static_cast<std::int64_t>(segment_) * kSegmentBytes + used_;
  std::memcpy(pinned_.get() + at, from, size);
  REDLINE_CUDA(cudaMemcpyAsync(staging_.get() + at, pinned_.get() + at, size, cudaMemcpyHostToDevice, copies_.get()));
  REDLINE_CUDA(cudaEventRecord(arrived_.get(), copies_.get()));
  REDLINE_CUDA(cudaStreamWaitEvent(stream, arrived_.get()));
  REDLINE_CUDA(cudaMemcpyAsync(to, staging_.get() + at, size, cudaMemcpyDeviceToDevice, stream));
  used_ += aligned(bytes);
}

void UploadRing::next_segment(cudaStream_t stream) {
  REDLINE_CUDA(cudaEventRecord(read_[segment_].get(), stream));
  segment_ = (segment_ + 1) % kSegments;
  REDLINE_CUDA(cudaEventSynchronize(read_[segment_].get()));  // an event that was never recorded has happened
  used_ = 0;
}

}  // namespace redline::device::cuda
