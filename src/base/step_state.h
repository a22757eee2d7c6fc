// The values of a program that change from step to step. They live in device memory, never in a kernel's arguments, so
// that a captured graph stays valid. The host writes them before each run of a program.
#pragma once

#include <cstdint>

namespace redline {

// The counts of a step: ranks add theirs up.
struct StepCounts {
  double pairs = 0;  // real target pairs
  double real_tokens = 0, flops = 0, flops_palm = 0;
  double stop = 0;  // ranks that were asked to end after the step
  double save = 0;  // rank 0's clock asks for a checkpoint after it
  double slow = 0;  // ranks whose micro-steps take so long that each step is to be waited for
};

struct StepState {
  std::uint64_t seed = 0;         // of the run: keys dropout
  std::uint64_t step = 0;         // counted from 0
  std::uint64_t first_token = 0;  // of this micro-batch among the tokens of the step
  StepCounts counts = {};         // of this rank's part of the step
  float lr = 0;
  float correction1 = 1;         // 1 - beta1^t
  float correction2 = 1;         // 1 - beta2^t
  float weight_decay_share = 1;  // of the weight decay that counts in this step: less where it falls with the rate
  float average = 1;             // share of this step's weights in their average (optim/adamw.h)
  float momentum = 0;            // of Muon
};

// The result of an update.
struct UpdateResult {
  float grad_norm = 0;   // of the mean gradient, before clipping
  float grad_scale = 0;  // factor of the gradients in AdamW: one over the pairs, times clipping
  float finite = 0;      // 1: norm and loss were finite, the norm within its limit, and the update was made; 0: nothing
                         // was touched
  float limit = 0;       // of the norm, by guard.spike; 0: none, or not enough was seen yet
  double loss_sum = 0;   // of all ranks, as counts are
  StepCounts counts = {};
};

}  // namespace redline
