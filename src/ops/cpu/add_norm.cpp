// Residual add and RMSNorm:  r = residual_in + branch;  rstd = 1 / sqrt(mean(r^2) + eps);  y = r * rstd * w.
// RMSNorm of a branch added to the residual stream:  rstd = 1 / sqrt(mean(b^2) + eps);  out = r + b * rstd * w.
// Gradient of both, h = dy * w:
//   dr (+)= rstd * (h - r * rstd^2 * mean(h * r));  dw (+)= sum over rows of dy * r * rstd.
// With one_plus w stands for 1 + weight.
// Forward, a task is a range of rows, and a row is read once from memory: its second pass comes from the first-level
// cache. Backward, a task is one of kRowGroups groups of rows with its own row of partial sums of dw.
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {

void run(const AddNorm<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(op.y.present() && !op.fp8.present(), "{} casts nothing on the CPU", op.kName);
  const std::int64_t n = op.y.rows(), d = op.y.columns();
  const float* weight = norm_weight(op.weight, op.one_plus);
  for_rows(pool, n, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* residual = op.residual_in.f32() + i * d;
      float squares;
      if (op.branch.present()) {
        const float* branch = op.branch.f32() + i * d;
        float* sum = op.residual_out.f32() + i * d;
        squares = lane_sum(d, [=](std::int64_t j) {
          const float r = residual[j] + branch[j];
          sum[j] = r;
          return r * r;
        });
        residual = sum;
      } else {
        squares = lane_sum(d, [=](std::int64_t j) { return residual[j] * residual[j]; });
      }
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(d) + op.eps);
      op.rstd.f32()[i] = rstd;
      float* y = op.y.f32() + i * d;
#pragma omp simd
      for (std::int64_t j = 0; j < d; ++j) y[j] = residual[j] * rstd * weight[j];
    }
  });
}

void run(const AddNormGrad<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} casts nothing on the CPU", op.kName);
  const std::int64_t n = op.dy.rows(), d = op.dy.columns();
  const float* weight = norm_weight(op.weight, op.one_plus);
  for_row_groups(pool, n, op.partial.f32(), d, [&](std::int64_t begin, std::int64_t end, float* dweight) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* dy = op.dy.f32() + i * d;
      const float* r = op.residual.f32() + i * d;
      float* dr = op.dresidual.f32() + i * d;
      const float rstd = op.rstd.f32()[i];
      const float product = lane_sum(d, [=](std::int64_t j) { return dy[j] * weight[j] * r[j]; });
      const float slope = product * rstd * rstd / static_cast<float>(d);
      if (op.accumulate_residual) {
#pragma omp simd
        for (std::int64_t j = 0; j < d; ++j) {
          dweight[j] += dy[j] * (r[j] * rstd);
          dr[j] += rstd * (dy[j] * weight[j] - r[j] * slope);
        }
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < d; ++j) {
          dweight[j] += dy[j] * (r[j] * rstd);
          dr[j] = rstd * (dy[j] * weight[j] - r[j] * slope);
        }
      }
    }
  });
  sum_row_groups(op.partial.f32(), d, 0, d, op.dweight.f32(), op.accumulate_weight);
}

void run(const NormAdd<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.branch.rows(), d = op.branch.columns();
  const float* weight = norm_weight(op.weight, op.one_plus);
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

void run(const Add<Tensor>& op, ThreadPool& pool) {
  const float *a = op.a.f32(), *b = op.b.f32();
  float* y = op.y.f32();
  pool.for_ranges(op.y.elements(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
  });
}

}  // namespace redline::ops::cpu
