// Matrix products on the GPU through cuBLASLt: plans are made and tuned the first time a shape is seen (before capture)
// and then only launched.
#pragma once

#include "base/tensor.h"
#include "device/cuda/launch.h"

namespace redline::ops::cuda {

// The first bytes of a launch's workspace are gemm's; a kernel that calls it keeps nothing there across the call.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

// C[m, n] = op(A) * op(B) + beta * C, row-major and dense with the given leading dimensions; a and b bf16 or fp32, c
// bf16 (of bf16 inputs) or fp32, accumulated in fp32; beta 0 or 1.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  void* c = nullptr;
  std::int64_t ldc = 0;
  DType input = DType::bf16, output = DType::bf16;
  float beta = 0;
};

void gemm(const Gemm& g, const device::cuda::Launch& launch);

// Writes what was tuned since the last call to the tuning file, for later runs. A file that cannot be written is a
// warning.
void keep_tuning();

}  // namespace redline::ops::cuda
