// What a process takes of a card beside the buffers it asks for: known here without CUDA, so that a run can be planned on
// any machine.
#pragma once

#include <cstdint>

namespace redline::device {

inline constexpr std::int64_t kCudaWorkspaceBytes = std::int64_t{64} << 20;  // one, shared by all kernels of the stream

// Uploads pass through a ring on the card.
inline constexpr std::int64_t kUploadSegments = 4;
inline constexpr std::int64_t kUploadSegmentBytes = std::int64_t{2} << 20;  // a batch of 128 Ki tokens

}  // namespace redline::device
