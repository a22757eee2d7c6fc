// Optional RMSNorm of each q and k head, then the rotation:  x[j] <- a c - b s,  x[j + half] <- b c + a s.
// Gradient: the opposite rotation, then, h = dy * w:  dx = rstd * (h - x * rstd^2 * mean(h * x));  dw (+)= sum of dy *
// x * rstd. A task is a range of tokens, every q and k head of a token in turn, in place. With a norm's gradient the
// ranges are the kRowGroups groups, each with its partial sums [dq_norm | dk_norm].
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// Rotates one head by the angles of a row of the table; `direction` -1 undoes it.
void rotate(float* x, const float* table, std::int64_t head_dim, float direction) {
  const std::int64_t half = head_dim / 2;
  const float *cosine = table, *sine = table + half;
  float* upper = x + half;
#pragma omp simd
  for (std::int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = upper[j], c = cosine[j], s = direction * sine[j];
    x[j] = a * c - b * s;
    upper[j] = b * c + a * s;
  }
}

// Normalises one head in place and returns its rstd.
float normalise(float* x, const float* weight, std::int64_t head_dim, float eps) {
  const float squares = lane_sum(head_dim, [=](std::int64_t j) { return x[j] * x[j]; });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + eps);
#pragma omp simd
  for (std::int64_t j = 0; j < head_dim; ++j) x[j] = x[j] * rstd * weight[j];
  return rstd;
}

// Turns the gradient of a normalised head into that of the raw one, in place, and adds to the weight's.
void normalise_grad(float* dy, const float* x, const float* weight, float rstd, std::int64_t head_dim, float* dweight) {
  const float product = lane_sum(head_dim, [=](std::int64_t j) { return dy[j] * weight[j] * x[j]; });
  const float slope = product * rstd * rstd / static_cast<float>(head_dim);
#pragma omp simd
  for (std::int64_t j = 0; j < head_dim; ++j) {
    const float g = dy[j];
    dweight[j] += g * (x[j] * rstd);
    dy[j] = rstd * (g * weight[j] - x[j] * slope);
  }
}

}  // namespace

void run(const RopeQkNorm<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t qk_width = l.qk_heads() * l.head_dim;
  for_rows(pool, op.qkv.rows(), qk_width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* row = op.qkv.f32() + i * l.qkv_width();
      if (op.raw.present()) std::copy_n(row, qk_width, op.raw.f32() + i * qk_width);
      const float* table = op.table.f32() + op.positions.i32()[i] * l.head_dim;
      for (std::int64_t h = 0; h < l.qk_heads(); ++h) {
        float* x = row + h * l.head_dim;
        const Tensor& norm = h < l.heads ? op.q_norm : op.k_norm;
        if (norm.present()) {
          const float rstd = normalise(x, norm.f32(), l.head_dim, op.eps);
          if (op.rstd.present()) op.rstd.f32()[i * l.qk_heads() + h] = rstd;
        }
        rotate(x, table, l.head_dim, 1.0f);
      }
    }
  });
}

void run(const RopeQkNormGrad<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t n = op.dqkv.rows(), hd = l.head_dim, qk_width = l.qk_heads() * hd;
  const auto undo_rotation = [&](std::int64_t i) {
    const float* table = op.table.f32() + op.positions.i32()[i] * hd;
    for (std::int64_t h = 0; h < l.qk_heads(); ++h)
      rotate(op.dqkv.f32() + i * l.qkv_width() + h * hd, table, hd, -1.0f);
  };
  if (!op.raw.present()) {
    return for_rows(pool, n, qk_width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) undo_rotation(i);
    });
  }
  for_row_groups(pool, n, op.partial.f32(), 2 * hd, [&](std::int64_t begin, std::int64_t end, float* partial) {
    for (std::int64_t i = begin; i < end; ++i) {
      undo_rotation(i);
      for (std::int64_t h = 0; h < l.qk_heads(); ++h) {
        const bool is_query = h < l.heads;
        normalise_grad(op.dqkv.f32() + i * l.qkv_width() + h * hd, op.raw.f32() + i * qk_width + h * hd,
                       (is_query ? op.q_norm : op.k_norm).f32(), op.rstd.f32()[i * l.qk_heads() + h], hd,
                       partial + (is_query ? 0 : hd));
      }
    }
  });
  sum_row_groups(op.partial.f32(), 2 * hd, 0, hd, op.dq_norm.f32(), op.accumulate);
  sum_row_groups(op.partial.f32(), 2 * hd, hd, hd, op.dk_norm.f32(), op.accumulate);
}

}  // namespace redline::ops::cpu
