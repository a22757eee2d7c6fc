// Copies to the card that neither the host nor the card's work waits for. Bytes go through pinned memory, since a copy
// from ordinary memory may wait for everything queued before it. A stream of their own brings them into a staging area
// on the card, from where the work's stream takes them at memory speed. The ring has segments; a segment is used again
// once it was read.
#pragma once

#include <array>
#include <cstdint>

#include "device/card_overhead.h"
#include "device/cuda/handles.h"

namespace redline::device::cuda {

class UploadRing {
 public:
  UploadRing();

  // In the order of the stream. `from` may change as soon as it returns.
  void copy(void* to, const void* from, std::int64_t bytes, cudaStream_t stream);

 private:
  static constexpr auto kSegments = static_cast<std::size_t>(kUploadSegments);
  static constexpr std::int64_t kSegmentBytes = kUploadSegmentBytes;

  void next_segment(cudaStream_t stream);

  PinnedBytes pinned_;
  DeviceBytes staging_;
  Stream copies_;
  Event arrived_;                      // the last copy is on the card
  std::array<Event, kSegments> read_;  // the card has read the segment
  std::size_t segment_ = 0;
  std::int64_t used_ = 0;  // of the segment
};

}  // namespace redline::device::cuda
