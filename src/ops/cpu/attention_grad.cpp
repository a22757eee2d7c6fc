// Causal attention within packed documents, backward:  p = exp(scale q k^T - lse),  delta = rowsum(dout * out),
//   dv = p^T dout;  ds = p * (dout v^T - delta) * scale;  dq = ds k;  dk = ds^T q.
// A task is (document, key/value head) with its whole group of query heads: nobody else writes its dk, dv and dq, so
// there are no atomics and one order. Inside, key tiles by query tiles at or below the diagonal; tiles count from the
// document's own start. The first key tile writes dq, later ones add; dk and dv start at 0.
#include <algorithm>

#include "ops/cpu/document_tasks.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kQueryTile = 64, kKeyTile = 128;
static_assert(kKeyTile % kQueryTile == 0, "a query tile starts in the key tile that holds its diagonal");

// One head's rows in the arrays that backward reads and writes; q, k and v rows are qkv_width
// apart, out rows out_width.
struct HeadPointers {
  const float *q, *k, *v, *out, *dout, *lse;
  float *dq, *dk, *dv, *delta;
  std::int64_t head_dim, qkv_width, out_width;

  HeadPointers(const AttentionGrad<Tensor>& op, std::int64_t head)
      : head_dim(op.layout.head_dim),
        qkv_width(op.layout.qkv_width()),
        out_width(op.layout.heads * op.layout.head_dim) {
    const HeadLayout& l = op.layout;
    const std::int64_t kv_head = head / (l.heads / l.kv_heads), n = op.qkv.rows();
    const std::int64_t k_column = (l.heads + kv_head) * head_dim, v_column = k_column + l.kv_heads * head_dim;
    q = op.qkv.f32() + head * head_dim;
    k = op.qkv.f32() + k_column;
    v = op.qkv.f32() + v_column;
    dq = op.dqkv.f32() + head * head_dim;
    dk = op.dqkv.f32() + k_column;
    dv = op.dqkv.f32() + v_column;
    out = op.out.f32() + head * head_dim;
    dout = op.dout.f32() + head * head_dim;
    lse = op.lse.f32() + head * n;
    delta = op.delta.f32() + head * n;
  }
};

void fill_delta(const HeadPointers& h, const DocumentPart& document) {
  for (std::int64_t i = document.begin; i < document.end; ++i) {
    const float *out = h.out + i * h.out_width, *dout = h.dout + i * h.out_width;
    h.delta[i] = lane_sum(h.head_dim, [=](std::int64_t j) { return out[j] * dout[j]; });
  }
}

void clear_keys(const HeadPointers& h, const DocumentPart& document) {
  for (std::int64_t i = document.begin; i < document.end; ++i) {
    std::fill_n(h.dk + i * h.qkv_width, h.head_dim, 0.0f);
    std::fill_n(h.dv + i * h.qkv_width, h.head_dim, 0.0f);
  }
}

// scores -> p, masked.
void probabilities(float* scores, std::int64_t visible, std::int64_t keys, float lse) {
#pragma omp simd
  for (std::int64_t j = 0; j < visible; ++j) scores[j] = exp(scores[j] - lse);
  std::fill(scores + visible, scores + keys, 0.0f);
}

// One tile: queries [query, query + queries) against keys [key, key + keys).
struct Tile {
  std::int64_t query, queries, key, keys;
  bool first;  // of the tiles of these queries: dq is written, not added to
};

void tile_grad(const HeadPointers& h, const Tile& t, float scale) {
  const std::int64_t hd = h.head_dim, w = h.qkv_width;
  const Matrix q{h.q + t.query * w, t.queries, hd, w}, k{h.k + t.key * w, t.keys, hd, w};
  const Matrix v{h.v + t.key * w, t.keys, hd, w}, dout{h.dout + t.query * h.out_width, t.queries, hd, h.out_width};
  alignas(64) float p[kQueryTile * kKeyTile];
  alignas(64) float ds[kQueryTile * kKeyTile];
  const Matrix p_tile{p, t.queries, t.keys, t.keys}, ds_tile{ds, t.queries, t.keys, t.keys};

  gemm_tile(product(q, turned(k), p, t.keys, scale));
  for (std::int64_t i = 0; i < t.queries; ++i) {
    probabilities(p + i * t.keys, std::min(t.keys, t.query + i + 1 - t.key), t.keys, h.lse[t.query + i]);
  }
  gemm_tile(product(turned(p_tile), dout, h.dv + t.key * w, w, 1, 1));
  gemm_tile(product(dout, turned(v), ds, t.keys));
  for (std::int64_t i = 0; i < t.queries; ++i) {
    const float delta = h.delta[t.query + i];
    float* row = ds + i * t.keys;
    const float* p_row = p + i * t.keys;
#pragma omp simd
    for (std::int64_t j = 0; j < t.keys; ++j) row[j] = p_row[j] * (row[j] - delta) * scale;
  }
  gemm_tile(product(ds_tile, k, h.dq + t.query * w, w, 1, t.first ? 0.0f : 1.0f));
  gemm_tile(product(turned(ds_tile), q, h.dk + t.key * w, w, 1, 1));
}

}  // namespace

void run(const AttentionGrad<Tensor>& op, ThreadPool& pool) {
  require_buffers(pool);
  const HeadLayout& l = op.layout;
  const std::int64_t n = op.qkv.rows(), group = l.heads / l.kv_heads, qkv_width = l.qkv_width();
  const DocumentParts documents = cut_documents(op.doc_offsets);
  run_tasks(pool, static_cast<std::int64_t>(documents.size()) * l.kv_heads, [&](std::int64_t task) {
    const DocumentPart& document = documents[static_cast<std::size_t>(task / l.kv_heads)];
    const std::int64_t first_head = task % l.kv_heads * group;
    clear_keys(HeadPointers(op, first_head), document);
    for (std::int64_t head = first_head; head < first_head + group; ++head) {
      const HeadPointers h(op, head);
      fill_delta(h, document);
      for (std::int64_t key = document.begin; key < document.end; key += kKeyTile) {
        for (std::int64_t query = key; query < document.end; query += kQueryTile) {
          const std::int64_t query_end = std::min(query + kQueryTile, document.end);
          const std::int64_t key_end = std::min(key + kKeyTile, query_end);
          tile_grad(h,
                    {.query = query,
                     .queries = query_end - query,
                     .key = key,
                     .keys = key_end - key,
                     .first = key == document.begin},
                    op.scale);
        }
      }
    }
  });
  const std::int64_t tail = documents_end(op.doc_offsets);
  std::fill(op.dqkv.f32() + tail * qkv_width, op.dqkv.f32() + n * qkv_width, 0.0f);
}

}  // namespace redline::ops::cpu
