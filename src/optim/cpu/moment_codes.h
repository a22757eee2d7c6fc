// Moments of a block to codes of eight bits and back (optim/moments.h), on the CPU: for its update, and for checkpoints
// that kept them another way.
#pragma once

#include <cstdint>

#include "optim/moments.h"

namespace redline::optim::cpu {

void decode_moments(const DynamicMap& map, const std::uint8_t* codes, std::int64_t count, float scale, float* out);
// At most kCutBlock of them; return their scale.
float encode_first_moments(const float* moments, std::int64_t count, std::uint8_t* codes);
float encode_second_moments(const float* moments, std::int64_t count, std::uint8_t* codes);

}  // namespace redline::optim::cpu
