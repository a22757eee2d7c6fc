// Compares a step in eight bits on a card with the CPU's, which makes the same casts.
#pragma once

#include <vector>

#include "infer/verify.h"

namespace redline::infer {

// Gives the truth the scales of another engine of the same model.
void take_scales(model::Engine& truth, model::Engine& from);

// Runs one micro-step of each over the batch that both hold. Two steps that differ in the last bits of bf16 soon have
// other codes: a cast turns a difference d into the root of d times its own step, so that after a few casts only their
// own error is left. So every copy is compared where it is made, and the truth goes on with the other's copy. The
// difference between two casts is then bf16's, with its tolerances. The loss and the gradients are compared last.
std::vector<Comparison> compare_step(model::Engine& engine, model::Engine& truth);

}  // namespace redline::infer
