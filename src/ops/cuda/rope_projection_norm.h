// Rotary embedding behind a norm of all of q and one of all of k: rope_qk_norm.cu gives ops of NormOver::projection on.
#pragma once

#include "device/cuda/launch.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops::cuda {

void rope_projection_norm(const RopeQkNorm<Tensor>& op, const device::cuda::Launch& launch);
void rope_projection_norm_grad(const RopeQkNormGrad<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
