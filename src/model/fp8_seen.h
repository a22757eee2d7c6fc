// The contents of a run's copies in eight bits, for people to look at.
#pragma once

#include <string>

#include "base/dtype.h"

namespace redline::model {

// One tensor in one micro-step.
struct Fp8Seen {
  std::string name;  // "layer 3/qkv gradient"
  DType format = DType::e4m3;
  double scale = 0;
  double amax = 0;       // its largest magnitude; of a norm's output, as its copy in eight bits has it
  double saturated = 0;  // share of its elements that are the largest number of the format; 0 where all fit
  double zero = 0;       // share that is zero in eight bits: zero before, or too small
};

}  // namespace redline::model
