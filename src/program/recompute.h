// Trades time for memory: values that a layer's backward pass needs are computed again just before it, instead of kept
// since the forward pass. The same nodes run on the same operands, so gradients have the same bits wherever kernels
// repeat.
#pragma once

#include "program/program.h"

namespace redline::program {

enum class Recompute : std::uint8_t {
  none,
  mlp,    // the product before SwiGLU and SwiGLU itself: the two largest values of a layer
  block,  // all of a layer but the residual stream that enters it
};

// Rewrites a program that has its backward pass. The last layer stays as it is: its backward pass comes at once, so
// nothing would be saved.
void recompute(ProgramSet& set, Program& program, Recompute what);

}  // namespace redline::program
