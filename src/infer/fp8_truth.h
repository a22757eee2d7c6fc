// A step in eight bits held against the CPU's, which makes the same casts.
#pragma once

#include <vector>

#include "infer/verify.h"

namespace redline::infer {

// Gives the truth the scales of another engine of the same model.
void take_scales(model::Engine& truth, model::Engine& from);

// One micro-step of each, over the batch that both hold. Two steps that differ in last bits of bf16 soon have other
// codes: a cast makes of a difference d one of the root of d times its own step, so that after a few of them nothing is
// left but the casts' own error. So every copy is compared where it is made, and the truth goes on with the other's.
// The difference that is left between two casts is bf16's, and has its tolerances. Then the loss and the gradients.
std::vector<Comparison> compare_step(model::Engine& engine, model::Engine& truth);

}  // namespace redline::infer
