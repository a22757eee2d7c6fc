// Causal attention within packed documents, grouped queries: query head h reads key/value head h / (heads / kv_heads).
// For a token i of a document that starts at s:  out[i] = sum_{j=s..i} softmax_j(scale * q[i].k[j]) v[j].
//   lse[i] = log sum_{j=s..i} exp(scale * q[i].k[j])      natural log, kept for the backward pass
// Tokens after the last document (the tail) get out = 0 and lse = 0; their dqkv is 0.
// Gradient, with p = exp(scale * q.k - lse) and delta[i] = dout[i].out[i]:
//   dv[j] = sum_i p dout[i];  ds = p * (dout[i].v[j] - delta[i]) * scale
//   dq[i] = sum_j ds k[j];    dk[j] = sum_i ds q[i]
// Work is done only for pairs that the mask keeps (up to a tile's edge); no T x T matrix exists.
#pragma once

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
  T tiles{};               // ops/document_tiles.h, or absent: only for kernels that do without
  T workspace{};           // bytes of scratch for a library's kernel, or absent
  AttentionHow how{};

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
                        how};
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
                            how};
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

}  // namespace redline::ops
