// RMSNorm of a branch added to the residual stream:  rstd = 1 / sqrt(mean(b^2) + eps);  out = r + b * rstd * w.
// A task is a range of rows, and a row is read once from memory: its second pass comes from the first-level cache.
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {

void run(const NormAdd<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.branch.rows(), d = op.branch.columns();
  const float* weight = op.weight.f32();
  for_rows(pool, n, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float *residual = op.residual_in.f32() + i * d, *branch = op.branch.f32() + i * d;
      const float squares = lane_sum(d, [=](std::int64_t j) { return branch[j] * branch[j]; });
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(d) + op.eps);
      op.rstd.f32()[i] = rstd;
      float* out = op.residual_out.f32() + i * d;
#pragma omp simd
      for (std::int64_t j = 0; j < d; ++j) out[j] = residual[j] + branch[j] * rstd * weight[j];
    }
  });
}

}  // namespace redline::ops::cpu
