// When a tensor in eight bits is worth a word.
#pragma once

#include <string>

#include "model/fp8_seen.h"

namespace redline::report {

// Above 1: it leaves the range of its format, more than 0.1% of it are cut off there, more than half of it is zero, or
// it is not finite. `padding` is the share of token slots that hold none: their gradients are zero by right.
double fp8_trouble(const model::Fp8Seen& t, double padding = 0);

// Of what is in trouble: "is not finite".
std::string fp8_trouble_in_words(const model::Fp8Seen& t);

}  // namespace redline::report
