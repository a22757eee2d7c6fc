// Optional RMSNorm of each q and k head or of all q and all k, then the rotation:
//   x[j] <- a c - b s,  x[j + half] <- b c + a s.
// Gradient: the opposite rotation, then, h = dy * w: dx = rstd * (h - x * rstd^2 * mean(h * x)); dw (+)= sum of dy *
// x * rstd. A task is a range of tokens, every q and k head of a token in turn, in place. With a norm's gradient the
// ranges are the kRowGroups groups, each with its partial sums [dq_norm | dk_norm]. With one_plus w stands for 1 +
// weight.
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

// Normalises one head or projection in place and returns its rstd. Inlined for the sake of bits: compiled by itself GCC
// adds the lanes up in another order.
[[gnu::always_inline]] inline float normalise(float* x, const float* weight, std::int64_t width, float eps) {
  const float squares = lane_sum(width, [=](std::int64_t j) { return x[j] * x[j]; });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) x[j] = x[j] * rstd * weight[j];
  return rstd;
}

// Turns the gradient of a normalised head or projection into that of the raw one, in place, and adds to the weight's.
[[gnu::always_inline]] inline void normalise_grad(float* dy, const float* x, const float* weight, float rstd,
                                                  std::int64_t width, float* dweight) {
  const float product = lane_sum(width, [=](std::int64_t j) { return dy[j] * weight[j] * x[j]; });
  const float slope = product * rstd * rstd / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const float g = dy[j];
    dweight[j] += g * (x[j] * rstd);
    dy[j] = rstd * (g * weight[j] - x[j] * slope);
  }
}

}  // namespace

void run(const RopeQkNorm<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t qk_width = l.qk_heads() * l.head_dim, norms = norms_of(l, op.over);
  const float *q_norm = norm_weight(op.q_norm, op.one_plus), *k_norm = norm_weight<1>(op.k_norm, op.one_plus);
  for_rows(pool, op.qkv.rows(), qk_width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      float* row = op.qkv.f32() + i * l.qkv_width();
      if (op.raw.present()) std::copy_n(row, qk_width, op.raw.f32() + i * qk_width);
      const float* table = op.table.f32() + op.positions.i32()[i] * l.head_dim;
      const auto norm_of = [&](std::int64_t k, float* x, std::int64_t width, const float* weight) {
        const float rstd = normalise(x, weight, width, op.eps);
        if (op.rstd.present()) op.rstd.f32()[i * norms + k] = rstd;
      };
      if (op.over == NormOver::projection) {
        norm_of(0, row, l.heads * l.head_dim, q_norm);
        norm_of(1, row + l.heads * l.head_dim, l.kv_heads * l.head_dim, k_norm);
      }
      for (std::int64_t h = 0; h < l.qk_heads(); ++h) {
        float* x = row + h * l.head_dim;
        const float* norm = h < l.heads ? q_norm : k_norm;
        if (op.over == NormOver::head && norm) norm_of(h, x, l.head_dim, norm);
        rotate(x, table, l.head_dim, 1.0f);
      }
    }
  });
}

void run(const RopeQkNormGrad<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} does not cast here", op.kName);
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
  const std::int64_t norms = norms_of(l, op.over), q_width = op.dq_norm.elements(), k_width = op.dk_norm.elements();
  const std::int64_t width = q_width + k_width;
  const float *q_norm = norm_weight(op.q_norm, op.one_plus), *k_norm = norm_weight<1>(op.k_norm, op.one_plus);
  for_row_groups(pool, n, op.partial.f32(), width, [&](std::int64_t begin, std::int64_t end, float* partial) {
    for (std::int64_t i = begin; i < end; ++i) {
      undo_rotation(i);
      const auto grad_of = [&](std::int64_t k, std::int64_t first, std::int64_t part, bool is_query) {
        normalise_grad(op.dqkv.f32() + i * l.qkv_width() + first, op.raw.f32() + i * qk_width + first,
                       is_query ? q_norm : k_norm, op.rstd.f32()[i * norms + k], part,
                       partial + (is_query ? 0 : q_width));
      };
      if (op.over == NormOver::projection) {
        grad_of(0, 0, q_width, true);
        grad_of(1, q_width, k_width, false);
      } else {
        for (std::int64_t h = 0; h < l.qk_heads(); ++h) grad_of(h, h * hd, hd, h < l.heads);
      }
    }
  });
  sum_row_groups(op.partial.f32(), width, 0, q_width, op.dq_norm.f32(), op.accumulate);
  sum_row_groups(op.partial.f32(), width, q_width, k_width, op.dk_norm.f32(), op.accumulate);
}

}  // namespace redline::ops::cpu
