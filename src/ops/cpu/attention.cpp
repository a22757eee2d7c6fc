// Causal attention within packed documents. Tiles count from a document's own start, so its bits do not depend on where
// it stands or on its neighbours. Products go through gemm_tile, straight from packed qkv.
//
// With a window the keys of a query are a range of a tile's, empty in a tile that only its neighbours see; tiles that
// no query of a tile sees cost nothing.
//
// Forward: for a query tile, key tiles in order, s = scale q k^T,
//   top' = max(top, s);  p = exp(s - top');  out = out * exp(top - top') + p v;  sum likewise;  at the end out /= sum.
// A task is (document, head, kQueryTile queries); out is the accumulator.
//
// Backward:  p = exp(scale q k^T - lse),  delta = rowsum(dout * out),
//   dv = p^T dout;  ds = p * (dout v^T - delta) * scale;  dq = ds k;  dk = ds^T q.
// A task is (document, key/value head) with its whole group of query heads: it is the only writer of its dk, dv and dq,
// so there are no atomics and one order. Inside, key tiles by query tiles at or below the diagonal. The first key tile
// writes dq, later ones add; dk and dv start at 0.
//
// A decoding step over cached keys and values takes the sums of the forward pass, key by key. A task is (slot,
// key/value head), with every query head of its group in turn; a slot's bits do not depend on how many others there
// are. Storing a document is a copy; a task is (slot, key/value head) there too.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kQueryTile = 64, kKeyTile = 256, kGradKeyTile = 128;
static_assert(kKeyTile % kQueryTile == 0, "a query sees at least one key of every key tile that its tile reads");
static_assert(kGradKeyTile % kQueryTile == 0, "a query tile starts in the key tile that holds its diagonal");

// Tokens [begin, end) of the document that starts at `document`.
struct DocumentPart {
  std::int64_t document, begin, end;
};
using DocumentParts = std::span<const DocumentPart>;

// The beginning of the tail. Unused entries of doc_offsets repeat the end.
std::int64_t documents_end(const Tensor& doc_offsets) { return doc_offsets.i32()[doc_offsets.elements() - 1]; }

// Every document that has tokens, in parts of at most `length` counted from its own start; the parts that see most keys
// come first, so that no thread is left with a long one at the end. Valid until the calling thread cuts again.
DocumentParts cut_documents(const Tensor& doc_offsets, std::int64_t length = std::numeric_limits<std::int32_t>::max()) {
  // Kept from call to call: a steady step allocates nothing.
  thread_local std::vector<DocumentPart> parts;
  parts.clear();
  const std::int32_t* offsets = doc_offsets.i32();
  const std::int64_t capacity = doc_offsets.elements() - 1;
  for (std::int64_t d = 0; d < capacity; ++d) {
    const std::int64_t document = offsets[d], end = offsets[d + 1];
    for (std::int64_t begin = document; begin < end; begin += length) {
      parts.push_back({document, begin, std::min(end, begin + length)});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const DocumentPart& a, const DocumentPart& b) {
    const std::int64_t keys_a = a.end - a.document, keys_b = b.end - b.document;
    return keys_a != keys_b ? keys_a > keys_b : a.begin < b.begin;
  });
  return parts;
}

// The keys of a tile that a query sees, counted from the tile's first.
struct Seen {
  std::int64_t begin, end;
};
Seen seen_of(std::int64_t query, std::int64_t key, std::int64_t keys, std::int64_t window) {
  const std::int64_t end = std::min(keys, query + 1 - key);
  return {window == kNoWindow ? 0 : std::clamp<std::int64_t>(query + 1 - window - key, 0, end), end};
}

// The start of the first tile of keys that a query sees, or a tile of queries that begins with it.
std::int64_t first_key_tile(std::int64_t document, std::int64_t query, std::int64_t window, std::int64_t tile) {
  if (window == kNoWindow || query + 1 - window <= document) return document;
  return document + (query + 1 - window - document) / tile * tile;
}

// The running statistics of a query: the largest score and the sum of exp(score - top).
struct RowStatistics {
  float top = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Turns a row of scores into p and returns the factor for what was summed before it.
float softmax_step(float* scores, const Seen& seen, std::int64_t keys, RowStatistics& row) {
  std::fill(scores, scores + seen.begin, 0.0f);
  std::fill(scores + seen.end, scores + keys, 0.0f);
  if (seen.begin == seen.end) return 1;
  float* const visible = scores + seen.begin;
  const float top = std::max(row.top, lane_max(seen.end - seen.begin, visible));
  const float sum = lane_sum(seen.end - seen.begin, [=](std::int64_t j) { return visible[j] = exp(visible[j] - top); });
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

  const std::int64_t first_key = first_key_tile(part.document, part.begin, op.window, kKeyTile);
  for (std::int64_t key = first_key; key < part.end; key += kKeyTile) {
    const std::int64_t keys = std::min(kKeyTile, part.end - key);
    const Matrix k_tile{k + key * qkv_width, keys, hd, qkv_width}, v_tile{v + key * qkv_width, keys, hd, qkv_width};
    gemm_tile(product({q, queries, hd, qkv_width}, turned(k_tile), scores, keys, op.scale));
    const bool first = key == first_key;
    for (std::int64_t i = 0; i < queries; ++i) {
      const Seen seen = seen_of(part.begin + i, key, keys, op.window);
      const float correction = softmax_step(scores + i * keys, seen, keys, rows[i]);
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
void probabilities(float* scores, const Seen& seen, std::int64_t keys, float lse) {
  std::fill(scores, scores + seen.begin, 0.0f);
#pragma omp simd
  for (std::int64_t j = seen.begin; j < seen.end; ++j) scores[j] = exp(scores[j] - lse);
  std::fill(scores + seen.end, scores + keys, 0.0f);
}

// One tile: queries [query, query + queries) against keys [key, key + keys).
struct Tile {
  std::int64_t query, queries, key, keys;
  bool first;  // of the tiles of these queries: dq is written, not added to
};

void tile_grad(const HeadPointers& h, const Tile& t, float scale, std::int64_t window) {
  const std::int64_t hd = h.head_dim, w = h.qkv_width;
  const Matrix q{h.q + t.query * w, t.queries, hd, w}, k{h.k + t.key * w, t.keys, hd, w};
  const Matrix v{h.v + t.key * w, t.keys, hd, w}, dout{h.dout + t.query * h.out_width, t.queries, hd, h.out_width};
  alignas(64) float p[kQueryTile * kGradKeyTile];
  alignas(64) float ds[kQueryTile * kGradKeyTile];
  const Matrix p_tile{p, t.queries, t.keys, t.keys}, ds_tile{ds, t.queries, t.keys, t.keys};

  gemm_tile(product(q, turned(k), p, t.keys, scale));
  for (std::int64_t i = 0; i < t.queries; ++i) {
    probabilities(p + i * t.keys, seen_of(t.query + i, t.key, t.keys, window), t.keys, h.lse[t.query + i]);
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

void attend_cached(const float* q, const float* keys, const float* values, std::int64_t length, std::int64_t head_dim,
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
      for (std::int64_t key = document.begin; key < document.end; key += kGradKeyTile) {
        for (std::int64_t query = key; query < document.end; query += kQueryTile) {
          const std::int64_t first_key = first_key_tile(document.begin, query, op.window, kGradKeyTile);
          if (key < first_key) break;  // nor do later queries see it
          const std::int64_t query_end = std::min(query + kQueryTile, document.end);
          const std::int64_t key_end = std::min(key + kGradKeyTile, query_end);
          tile_grad(h,
                    {.query = query,
                     .queries = query_end - query,
                     .key = key,
                     .keys = key_end - key,
                     .first = key == first_key},
                    op.scale, op.window);
        }
      }
    }
  });
  const std::int64_t tail = documents_end(op.doc_offsets);
  std::fill(op.dqkv.f32() + tail * qkv_width, op.dqkv.f32() + n * qkv_width, 0.0f);
}

void run(const CacheStore<Tensor>& op, ThreadPool& pool) {
  const HeadLayout& l = op.layout;
  const std::int64_t slots = op.keys.shape[0], capacity = op.keys.shape[2], hd = l.head_dim;
  run_tasks(pool, slots * l.kv_heads, [&](std::int64_t task) {
    const std::int64_t slot = task / l.kv_heads, head = task % l.kv_heads;
    const std::int32_t document = op.slot_documents.i32()[slot];
    if (document < 0) return;
    const std::int64_t begin = op.doc_offsets.i32()[document], end = op.doc_offsets.i32()[document + 1];
    for (std::int64_t t = std::max(begin, op.window == kNoWindow ? begin : end - capacity); t < end; ++t) {
      const float* k = op.qkv.f32() + t * l.qkv_width() + (l.heads + head) * hd;
      const std::int64_t to = (task * capacity + (t - begin) % capacity) * hd;
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
    const std::int64_t at = position % capacity * hd, length = std::min(position + 1, capacity);
    std::copy_n(k, hd, keys + at);
    std::copy_n(k + l.kv_heads * hd, hd, values + at);
    for (std::int64_t h = head * group; h < (head + 1) * group; ++h)
      attend_cached(row + h * hd, keys, values, length, hd, op.scale, op.out.f32() + (slot * l.heads + h) * hd);
  });
  std::fill(op.out.f32() + slots * l.heads * hd, op.out.f32() + op.out.elements(), 0.0f);
}

}  // namespace redline::ops::cpu
