// Tells when a tensor in eight bits deserves a warning.
#pragma once

#include <string>

#include "model/fp8_seen.h"

namespace redline::report {

// Above 1 the tensor is in trouble: it leaves the range of its format, more than 0.1% of it is cut off, more than half
// of it is zero, or it is not finite. `padding` is the share of empty token slots, whose gradients are rightly zero.
double fp8_trouble(const model::Fp8Seen& t, double padding = 0);

// The trouble in words: "is not finite".
std::string fp8_trouble_in_words(const model::Fp8Seen& t);

}  // namespace redline::report
