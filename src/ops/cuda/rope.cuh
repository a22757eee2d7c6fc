// What the three files of RoPE share: the arithmetic of the rotation and of a head's norm, where kernels with casts and
// without must agree to the bit, and the launchers to which rope_qk_norm.cu gives ops on. Fused operations are written
// out, since compilers would choose differently from one kernel to the next.
#pragma once

#include <cstdint>

#include "device/cuda/launch.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops::cuda {

struct Rotated {
  float lower, upper;
};
// Rotates by the angle with cosine c and sine s; with -s by the opposite one.
__device__ inline Rotated rotated(float lower, float upper, float c, float s) {
  return {fmaf(lower, c, -(upper * s)), fmaf(upper, c, lower * s)};
}

// The sum over the lanes of a head, a power of two of them; each gets the same bits.
__device__ inline float head_sum(float value, std::int32_t lanes) {
  for (std::int32_t offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// A head's norm: `product` is the sum of dy * w * x over the head.
__device__ inline float norm_slope(float product, float rstd, std::int32_t head_dim) {
  return product * rstd * rstd * rstd / static_cast<float>(head_dim);
}
__device__ inline float norm_dx(float dy, float x, float w, float rstd, float slope) {
  return fmaf(dy, rstd * w, -(x * slope));
}

// rope_projection_norm.cu: ops whose norm is over all of q and over all of k.
void rope_projection_norm(const RopeQkNorm<Tensor>& op, const device::cuda::Launch& launch);
void rope_projection_norm_grad(const RopeQkNormGrad<Tensor>& op, const device::cuda::Launch& launch);

// rope_grad_cast.cu: gradients of RoPE and of norms of heads in eight bits alone, where dqkv is only read.
void rope_grad_cast(const RopeQkNormGrad<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
