// Causal attention within packed documents, forward: for a query tile, key tiles in order, s = scale q k^T,
//   top' = max(top, s);  p = exp(s - top');  out = out * exp(top - top') + p v;  sum likewise;  at the end out /= sum.
// A task is (document, head, kQueryTile queries); tiles count from the document's own start, so its bits do
// not depend on where it stands or on its neighbours. Products go through gemm_tile, straight from packed qkv;
// out is the accumulator.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/document_tasks.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kQueryTile = 64, kKeyTile = 256;
static_assert(kKeyTile % kQueryTile == 0, "a query sees at least one key of every key tile that its tile reads");

// The running statistics of a query: the largest score and the sum of exp(score - top).
struct RowStatistics {
  float top = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Turns a row of scores into p and returns the factor for what was summed before it.
float softmax_step(float* scores, std::int64_t visible, std::int64_t keys, RowStatistics& row) {
  const float top = std::max(row.top, lane_max(visible, scores));
  const float sum = lane_sum(visible, [=](std::int64_t j) { return scores[j] = exp(scores[j] - top); });
  std::fill(scores + visible, scores + keys, 0.0f);
  const float correction = exp(row.top - top);
  row.sum = row.sum * correction + sum;
  row.top = top;
  return correction;
}

void scale_row(float* x, std::int64_t columns, float factor) {
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) x[j] *= factor;
}

void attend(const Attention<Tensor>& op, std::int64_t head, const DocumentPart& part) {
  const HeadLayout& l = op.layout;
  const std::int64_t hd = l.head_dim, qkv_width = l.qkv_width(), out_width = l.heads * hd;
  const std::int64_t kv_head = head / (l.heads / l.kv_heads), queries = part.end - part.begin;
  const float* q = op.qkv.f32() + part.begin * qkv_width + head * hd;
  const float* k = op.qkv.f32() + (l.heads + kv_head) * hd;
  const float* v = k + l.kv_heads * hd;
  float* out = op.out.f32() + part.begin * out_width + head * hd;
  alignas(64) float scores[kQueryTile * kKeyTile];
  RowStatistics rows[kQueryTile];

  for (std::int64_t key = part.document; key < part.end; key += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, part.end - key);
    const Matrix k_tile{k + key * qkv_width, keys, hd, qkv_width}, v_tile{v + key * qkv_width, keys, hd, qkv_width};
    gemm_tile(product({q, queries, hd, qkv_width}, turned(k_tile), scores, keys, op.scale));
    const bool first = key == part.document;
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t visible = std::min(keys, part.begin + i + 1 - key);
      const float correction = softmax_step(scores + i * keys, visible, keys, rows[i]);
      if (!first) scale_row(out + i * out_width, hd, correction);
    }
    gemm_tile(product({scores, queries, keys, keys}, v_tile, out, out_width, 1, first ? 0.0f : 1.0f));
  }
  float* lse = op.lse.f32() + head * op.qkv.rows() + part.begin;
  for (std::int64_t i = 0; i < queries; ++i) {
    scale_row(out + i * out_width, hd, 1.0f / rows[i].sum);
    lse[i] = rows[i].top + std::log(rows[i].sum);
  }
}

}  // namespace

void run(const Attention<Tensor>& op, ThreadPool& pool) {
  require_buffers(pool);
  const HeadLayout& l = op.layout;
  const std::int64_t n = op.qkv.rows(), out_width = l.heads * l.head_dim;
  const DocumentParts parts = cut_documents(op.doc_offsets, kQueryTile);
  run_tasks(pool, static_cast<std::int64_t>(parts.size()) * l.heads,
            [&](std::int64_t task) { attend(op, task % l.heads, parts[static_cast<std::size_t>(task / l.heads)]); });
  const std::int64_t tail = documents_end(op.doc_offsets);
  std::fill(op.out.f32() + tail * out_width, op.out.f32() + n * out_width, 0.0f);
  for (std::int64_t h = 0; h < l.heads; ++h) std::fill(op.lse.f32() + h * n + tail, op.lse.f32() + (h + 1) * n, 0.0f);
}

// Programs for the CPU have none: their attention walks over the documents themselves.
void run(const DocumentTiles<Tensor>&, ThreadPool&) { REDLINE_CHECK(false, "the CPU backend has no list of tiles"); }

}  // namespace redline::ops::cpu
