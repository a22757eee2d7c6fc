// Attention of a decoding step: every row is one new token of a text whose earlier keys and values lie in a cache.
//   cache_store:       keys[s][h][t] = k of token t of document slot_documents[s], for all its tokens; values likewise.
//                      Several slots may continue one document: each gets a copy. A slot with -1 keeps what it holds.
//   attention_cached:  for a row s with a slot, at p = positions[s]:  keys[s][h][p] = k,  values[s][h][p] = v,  then
//                      out[s] = sum_{j=0..p} softmax_j(scale * q[s].keys[s][j]) values[s][j]
// Grouped queries as in ops/attention.h. Rows behind the last slot exist to keep the shape of products: their out is 0.
// Positions are below the cache's capacity; whoever writes them sees to that.
#pragma once

#include <algorithm>

#include "base/tensor.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops {

template <class T>
struct CacheStore {
  static constexpr std::string_view kName = "cache_store";
  T qkv;             // [n, (heads + 2 kv_heads) * head_dim]
  T doc_offsets;     // [capacity + 1] i32
  T slot_documents;  // [slots] i32
  T keys;            // [slots, kv_heads, positions, head_dim]  the document's positions are written, others stay
  T values;          // [slots, kv_heads, positions, head_dim]  likewise
  HeadLayout layout{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return CacheStore<U>{f("qkv", qkv, Access::read),
                         f("doc_offsets", doc_offsets, Access::read),
                         f("slot_documents", slot_documents, Access::read),
                         f("keys", keys, Access::update),
                         f("values", values, Access::update),
                         layout};
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
                              scale};
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
