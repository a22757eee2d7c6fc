// The gradient of RoPE and of norms of heads, in eight bits alone: rope_qk_norm.cu gives ops on that only read dqkv.
#pragma once

#include "device/cuda/launch.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops::cuda {

void rope_grad_cast(const RopeQkNormGrad<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
