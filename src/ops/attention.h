// Causal attention within packed documents, grouped queries: query head h reads key/value head h / (heads / kv_heads).
// For a token i of a document that starts at s:  out[i] = sum_{j=s..i} softmax_j(scale * q[i].k[j]) v[j].
//   lse[i] = log sum_{j=s..i} exp(scale * q[i].k[j])      natural log, kept for the backward pass
// With a window w a query sees the last w of these keys, itself included: j from max(s, i - w + 1) on, in both sums.
// Tokens after the last document (the tail) get out = 0 and lse = 0; their dqkv is 0.
// Gradient, with p = exp(scale * q.k - lse) and delta[i] = dout[i].out[i]:
//   dv[j] = sum_i p dout[i];  ds = p * (dout[i].v[j] - delta[i]) * scale
//   dq[i] = sum_j ds k[j];    dk[j] = sum_i ds q[i]
// Work is done only for pairs that the mask keeps (up to a tile's edge); no T x T matrix exists.
// Below: the list of tiles that a card's kernels share, and attention of a decoding step over cached keys and values.
#pragma once

#include <algorithm>

#include "base/tensor.h"
#include "ops/how.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops {

template <class T>
struct Attention {
  static constexpr std::string_view kName = "attention";
  T qkv;          // [n, (heads + 2 kv_heads) * head_dim]
  T doc_offsets;  // [capacity + 1] i32
  T out;          // [n, heads * head_dim]  =
  T lse;          // [heads, n]             =
  HeadLayout layout{};
  float scale{};
  std::int64_t longest{};  // no document has more tokens
  T tiles{};               // of DocumentTiles, or absent: only for kernels that do without
  T workspace{};           // bytes of scratch for a library's kernel, or absent
  AttentionHow how{};
  std::int64_t window = kNoWindow;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return Attention<U>{f("qkv", qkv, Access::read),
                        f("doc_offsets", doc_offsets, Access::read),
                        f("out", out, Access::write),
                        f("lse", lse, Access::write),
                        layout,
                        scale,
                        longest,
                        f("tiles", tiles, Access::update),
                        f("workspace", workspace, Access::write),
                        how,
                        window};
  }
};

template <class T>
struct AttentionGrad {
  static constexpr std::string_view kName = "attention_grad";
  T qkv;          // [n, (heads + 2 kv_heads) * head_dim]
  T doc_offsets;  // [capacity + 1] i32
  T out;          // [n, heads * head_dim]
  T lse;          // [heads, n]
  T dout;         // [n, heads * head_dim]
  T dqkv;         // [n, (heads + 2 kv_heads) * head_dim]  =
  T delta;        // [heads, n]  scratch
  T workspace;    // bytes of scratch for a library's kernel, or absent
  HeadLayout layout{};
  float scale{};
  std::int64_t longest{};  // no document has more tokens
  T tiles{};               // as above
  AttentionHow how{};
  std::int64_t window = kNoWindow;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return AttentionGrad<U>{f("qkv", qkv, Access::read),
                            f("doc_offsets", doc_offsets, Access::read),
                            f("out", out, Access::read),
                            f("lse", lse, Access::read),
                            f("dout", dout, Access::read),
                            f("dqkv", dqkv, Access::write),
                            f("delta", delta, Access::write),
                            f("workspace", workspace, Access::write),
                            layout,
                            scale,
                            longest,
                            f("tiles", tiles, Access::update),
                            how,
                            window};
  }
};

// Bytes of the numbers that describe packed documents to a library: a length and three offsets each.
inline std::int64_t ragged_offset_bytes(std::int64_t capacity) { return (4 * capacity + 3) * 4; }

// The scratch memory of a library's forward kernel, its offsets included.
inline std::int64_t library_workspace_bytes(std::int64_t capacity) {
  const std::int64_t own = std::int64_t{32} << 20;
  return ragged_offset_bytes(capacity) + own;
}

// The sums of a library's backward kernel, in fp32: queries' gradients in rows as wide as dqkv's, with grouped queries
// those of keys and values for every query head too (rows as much wider as a group has heads), and three numbers a row.
inline std::int64_t library_grad_workspace_bytes(const HeadLayout& layout, std::int64_t n, std::int64_t capacity) {
  const std::int64_t group = layout.heads / layout.kv_heads, rows = group == 1 ? 1 : 1 + 2 * group, margin = 4 << 20;
  return ragged_offset_bytes(capacity) + 4 * n * (layout.qkv_width() * rows + 3 * layout.heads) + margin;
}

// Two products a pair forward. Backward counts as twice the forward, as MFU is defined; the fifth product that a kernel
// recomputes (the scores) is its own affair.
inline double flops_per_pair(const Attention<Tensor>& op) {
  return 4.0 * static_cast<double>(op.layout.heads * op.layout.head_dim);
}
inline double flops_per_pair(const AttentionGrad<Tensor>& op) {
  return 8.0 * static_cast<double>(op.layout.heads * op.layout.head_dim);
}

// The documents of a batch cut into tiles, longest documents first, for the kernels of a card that share pieces of
// attention out among their blocks. Documents change from batch to batch while a captured graph does not, so the list
// is made on the card, once for all that attend in a micro-step.
//   tiles(d) = ceil(length(d) / tile);  first(d) = sum of tiles over the documents that come before d in that order
// For each of kTileSizes: a head of 16 bytes (pieces taken, blocks done, slots in use), then a slot for each tile. The
// count of taken pieces is zero between two kernels: a kernel that takes pieces resets it.
template <class T>
struct DocumentTiles {
  static constexpr std::string_view kName = "document_tiles";
  T doc_offsets;  // [capacity + 1] i32
  T tiles;        // [tile_bytes] u8  =
  std::int64_t tokens{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tiles, Access::read));
    return DocumentTiles<U>{f("doc_offsets", doc_offsets, Access::read), f("tiles", tiles, Access::write), tokens};
  }
};

inline constexpr std::int64_t kTileSizes[] = {64, 128};  // tokens
inline constexpr std::int64_t kTileSlotBytes = 16;

// Every document ends in at most one tile that is not full.
inline std::int64_t tile_list_bytes(std::int64_t tokens, std::int64_t capacity, std::int64_t tile) {
  return kTileSlotBytes * (1 + tokens / tile + capacity);
}
inline std::int64_t tile_bytes(std::int64_t tokens, std::int64_t capacity) {
  std::int64_t bytes = 0;
  for (const std::int64_t tile : kTileSizes) bytes += tile_list_bytes(tokens, capacity, tile);
  return bytes;
}

// Attention of a decoding step: every row is one new token of a text whose earlier keys and values lie in a cache.
//   cache_store:       keys[s][h][t] = k of token t of document slot_documents[s], for all its tokens; values likewise.
//                      Several slots may continue one document: each gets a copy. A slot with -1 keeps what it holds.
//   attention_cached:  for a row s with a slot, at p = positions[s]:  keys[s][h][p] = k,  values[s][h][p] = v,  then
//                      out[s] = sum_{j=0..p} softmax_j(scale * q[s].keys[s][j]) values[s][j]
// Grouped queries as above. Rows after the last slot exist to keep the shape of products: their out is 0.
// Positions are below the cache's capacity; whoever writes them sees to that. With a window the cache is a ring of so
// many positions, or of fewer where no text gets so long: position p stands at p modulo its capacity, and what it holds
// is what the newest token sees.
template <class T>
struct CacheStore {
  static constexpr std::string_view kName = "cache_store";
  T qkv;             // [n, (heads + 2 kv_heads) * head_dim]
  T doc_offsets;     // [capacity + 1] i32
  T slot_documents;  // [slots] i32
  T keys;            // [slots, kv_heads, positions, head_dim]  the document's positions are written, others stay
  T values;          // [slots, kv_heads, positions, head_dim]  likewise
  HeadLayout layout{};
  std::int64_t window = kNoWindow;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return CacheStore<U>{f("qkv", qkv, Access::read),
                         f("doc_offsets", doc_offsets, Access::read),
                         f("slot_documents", slot_documents, Access::read),
                         f("keys", keys, Access::update),
                         f("values", values, Access::update),
                         layout,
                         window};
  }
};

template <class T>
struct AttentionCached {
  static constexpr std::string_view kName = "attention_cached";
  T qkv;        // [rows, (heads + 2 kv_heads) * head_dim]
  T positions;  // [rows] i32
  T keys;       // [slots, kv_heads, positions, head_dim]  one position of each slot is written
  T values;     // [slots, kv_heads, positions, head_dim]  likewise
  T out;        // [rows, heads * head_dim]  =
  T partial;    // [slots, heads, splits, head_dim + 2]  scratch: what a split of the keys adds up to
  HeadLayout layout{};
  float scale{};
  std::int64_t window = kNoWindow;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return AttentionCached<U>{f("qkv", qkv, Access::read),
                              f("positions", positions, Access::read),
                              f("keys", keys, Access::update),
                              f("values", values, Access::update),
                              f("out", out, Access::write),
                              f("partial", partial, Access::write),
                              layout,
                              scale,
                              window};
  }
};

// Long texts are cut into so many splits that one text alone can keep a card busy; short ones use fewer of them.
inline std::int64_t key_splits(std::int64_t positions) {
  constexpr std::int64_t kKeysOfSplit = 128, kMostSplits = 32;
  return std::clamp<std::int64_t>((positions + kKeysOfSplit - 1) / kKeysOfSplit, 1, kMostSplits);
}

// The rows of the documents, read once and written once a slot.
inline Cost cost(const CacheStore<Tensor>& op) {
  const double row = 2.0 * static_cast<double>(op.layout.kv_heads * op.layout.head_dim * op.qkv.rows()) *
                     static_cast<double>(size_of(op.qkv.dtype));
  return {.bytes = row * static_cast<double>(1 + op.keys.shape[0])};
}
// The cost with full caches, which are read once.
inline Cost cost(const AttentionCached<Tensor>& op) {
  const double flops = 4.0 * static_cast<double>(op.layout.heads) * static_cast<double>(op.layout.head_dim) *
                       static_cast<double>(op.keys.shape[0] * op.keys.shape[2]);
  return {.flops = flops,
          .bytes = static_cast<double>(op.keys.bytes() + op.values.bytes() + op.qkv.bytes() + op.out.bytes())};
}

}  // namespace redline::ops
