// The memory of a card that a process takes beside the buffers it asks for: known here without CUDA, so that a run can
// be planned on any machine.
#pragma once

#include <cstdint>

namespace redline::device {

// Uploads pass through a ring on the card.
inline constexpr std::int64_t kUploadSegments = 4;
inline constexpr std::int64_t kUploadSegmentBytes = std::int64_t{2} << 20;  // a batch of 128 Ki tokens

// The memory that the driver takes beside the buffers once a run is under way: kernels of the libraries, which are
// loaded when they are first used, and graphs. A run that left less free would end in its first step. With all of it,
// and what the driver takes when the card is opened, a process takes some 550 MiB on an H200.
inline constexpr std::int64_t kCudaFirstStepBytes = std::int64_t{256} << 20;

}  // namespace redline::device
