// What kernels that cast rows share: norms, and whoever else has eight neighbours of a row in a thread.
#pragma once

#include "ops/cuda/fp8_casts.cuh"

namespace redline::ops::cuda {

// The format is known at the launch alone: one kernel for both, since casts are not what such kernels wait for.
__device__ inline uint2 cast_8(const device::cuda::Vector<device::cuda::bf16, 8>& x, float scale, bool e5m2) {
  return e5m2 ? cast_8<true>(x, scale) : cast_8<false>(x, scale);
}

// What an op with copies must have beside them.
inline void check_copies(const Fp8Copies<Tensor>& to, std::int64_t n, std::int64_t d) {
  REDLINE_CHECK(to.scale.present() && d % 16 == 0 && (!to.columns.present() || n % 16 == 0),
                "{} x {} are not multiples of 16, or have no scale: no product takes them in eight bits", n, d);
  REDLINE_CHECK(device::cuda::in_vectors(16, {to.rows, to.columns}), "copies in eight bits are not aligned");
}

}  // namespace redline::ops::cuda
