// The card memory that a process takes beside its own buffers. It is known here without CUDA, so that a run can be
// planned on any machine.
#pragma once

#include <cstdint>

namespace redline::device {

// Uploads pass through a ring on the card.
inline constexpr std::int64_t kUploadSegments = 4;
inline constexpr std::int64_t kUploadSegmentBytes = std::int64_t{2} << 20;  // a batch of 128 Ki tokens

// The memory that the driver takes beside the buffers once a run is under way: graphs, and kernels of the libraries,
// which are loaded at their first use. A run that left less free would end in its first step. Together with the memory
// that the driver takes when a card is opened it is some 550 MiB on an H200.
inline constexpr std::int64_t kCudaFirstStepBytes = std::int64_t{256} << 20;

}  // namespace redline::device
