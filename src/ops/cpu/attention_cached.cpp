// A decoding step over cached keys and values: for the keys in tiles, s = scale q.k;  top' = max(top, s);
//   out = out * exp(top - top') + sum of exp(s - top') v;  sum likewise;  at the end out /= sum.
// A task is (slot, key/value head), with every query head of its group in turn; a slot's bits do not depend on how many
// others there are. Storing a document is a copy; a task is (slot, key/value head) there too.
#include <algorithm>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kKeyTile = 256;

void attend(const float* q, const float* keys, const float* values, std::int64_t length, std::int64_t head_dim,
            float scale, float* out) {
  alignas(64) float scores[kKeyTile];
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  std::fill_n(out, head_dim, 0.0f);
  for (std::int64_t first = 0; first < length; first += kKeyTile) {
    const std::int64_t tile = std::min(kKeyTile, length - first);
    for (std::int64_t j = 0; j < tile; ++j) {
      const float* k = keys + (first + j) * head_dim;
      scores[j] = scale * lane_sum(head_dim, [=](std::int64_t e) { return q[e] * k[e]; });
    }
    const float higher = std::max(top, lane_max(tile, scores)), correction = exp(top - higher);
    sum = sum * correction + lane_sum(tile, [&](std::int64_t j) { return scores[j] = exp(scores[j] - higher); });
    top = higher;
#pragma omp simd
    for (std::int64_t e = 0; e < head_dim; ++e) out[e] *= correction;
    for (std::int64_t j = 0; j < tile; ++j) {
      const float* v = values + (first + j) * head_dim;
      const float p = scores[j];
#pragma omp simd
      for (std::int64_t e = 0; e < head_dim; ++e) out[e] += p * v[e];
    }
  }
  const float factor = 1.0f / sum;
#pragma omp simd
  for (std::int64_t e = 0; e < head_dim; ++e) out[e] *= factor;
}

}  // namespace

void run(const CacheStore<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t slots = op.keys.shape[0], capacity = op.keys.shape[2], hd = l.head_dim;
  run_tasks(pool, slots * l.kv_heads, [&](std::int64_t task) {
    const std::int64_t slot = task / l.kv_heads, head = task % l.kv_heads;
    const std::int32_t document = op.slot_documents.i32()[slot];
    if (document < 0) return;
    const std::int64_t begin = op.doc_offsets.i32()[document], end = op.doc_offsets.i32()[document + 1];
    for (std::int64_t t = begin; t < end; ++t) {
      const float* k = op.qkv.f32() + t * l.qkv_width() + (l.heads + head) * hd;
      const std::int64_t to = (task * capacity + t - begin) * hd;
      std::copy_n(k, hd, op.keys.f32() + to);
      std::copy_n(k + l.kv_heads * hd, hd, op.values.f32() + to);
    }
  });
}

void run(const AttentionCached<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t slots = op.keys.shape[0], capacity = op.keys.shape[2], hd = l.head_dim,
                     group = l.heads / l.kv_heads;
  run_tasks(pool, slots * l.kv_heads, [&](std::int64_t task) {
    const std::int64_t slot = task / l.kv_heads, head = task % l.kv_heads, position = op.positions.i32()[slot];
    const float* row = op.qkv.f32() + slot * l.qkv_width();
    const float* k = row + (l.heads + head) * hd;
    float *keys = op.keys.f32() + task * capacity * hd, *values = op.values.f32() + task * capacity * hd;
    std::copy_n(k, hd, keys + position * hd);
    std::copy_n(k + l.kv_heads * hd, hd, values + position * hd);
    for (std::int64_t h = head * group; h < (head + 1) * group; ++h)
      attend(row + h * hd, keys, values, position + 1, hd, op.scale, op.out.f32() + (slot * l.heads + h) * hd);
  });
  std::fill(op.out.f32() + slots * l.heads * hd, op.out.f32() + op.out.elements(), 0.0f);
}

}  // namespace redline::ops::cpu
