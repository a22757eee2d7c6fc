// Rotary position embedding, in place on the q and k heads of packed QKV; before it, where a family asks for it, an
// RMSNorm over each head, or over all of q and over all of k. A token's row is [q heads | k heads | v heads], each
// head_dim wide; v is not touched.
//   with QK-norm:  x <- x * rstd * w          raw keeps x, since a norm done in place cannot be undone
//   then for j < head_dim/2, (a, b) = (x[j], x[j + head_dim/2]), c and s from the table at the token's position:
//                  x[j] <- a*c - b*s,   x[j + head_dim/2] <- b*c + a*s
// Gradient, in place on dqkv: the rotation by the opposite angle, then the norm's gradient from raw and rstd.
#pragma once

#include <compare>

#include "base/tensor.h"
#include "ops/add_norm.h"
#include "ops/fp8.h"

namespace redline::ops {

struct HeadLayout {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  auto operator<=>(const HeadLayout&) const = default;
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t qk_heads() const { return heads + kv_heads; }
};

// The elements that a QK-norm takes its mean over: one head, or the whole projection of q and that of k. Below, q_width
// and k_width are head_dim, or heads * head_dim and kv_heads * head_dim; `norms` is heads + kv_heads, or 2.
enum class NormOver : std::uint8_t { head, projection };

constexpr std::int64_t norms_of(const HeadLayout& l, NormOver over) {
  return over == NormOver::head ? l.qk_heads() : 2;
}

template <class T>
struct RopeQkNorm {
  static constexpr std::string_view kName = "rope_qk_norm";
  T qkv;        // [n, (heads + 2 kv_heads) * head_dim]  in place
  T q_norm;     // [q_width] or absent
  T k_norm;     // [k_width] or absent
  T positions;  // [n] i32
  T table;      // [max_positions, head_dim]: cos in the first half of a row, sin in the second
  T raw;        // [n, (heads + kv_heads) * head_dim]  =   absent without QK-norm or without a backward
  T rstd;       // [n, norms]                          =   absent likewise
  HeadLayout layout{};
  float eps{};
  NormOver over{};
  bool one_plus{};  // the norms' weights count as 1 + w

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", qkv, Access::read));
    return RopeQkNorm<U>{f("qkv", qkv, Access::update),
                         f("q_norm", q_norm, Access::read),
                         f("k_norm", k_norm, Access::read),
                         f("positions", positions, Access::read),
                         f("table", table, Access::read),
                         f("raw", raw, Access::write),
                         f("rstd", rstd, Access::write),
                         layout,
                         eps,
                         over,
                         one_plus};
  }
};

template <class T>
struct RopeQkNormGrad {
  static constexpr std::string_view kName = "rope_qk_norm_grad";
  static constexpr bool kCastsOnCard = true;
  T dqkv;       // [n, (heads + 2 kv_heads) * head_dim]  in place
  T q_norm;     // [q_width] or absent; so are k_norm, raw, rstd, dq_norm, dk_norm and partial
  T k_norm;     // [k_width]
  T positions;  // [n] i32
  T table;      // [max_positions, head_dim]
  T raw;        // [n, (heads + kv_heads) * head_dim]
  T rstd;       // [n, norms]
  T dq_norm;    // [q_width]  = or +=
  T dk_norm;    // [k_width]  = or +=
  T partial;    // [kRowGroups, q_width + k_width]  scratch
  HeadLayout layout{};
  bool accumulate{};
  NormOver over{};
  Fp8Copies<T> fp8{};  // of dqkv, v and all; dqkv itself may not be read afterwards
  bool one_plus{};

  // With fp8 it is only read where heads are of 16, 32, 64 or 128 and have norms of their own, if any.
  bool updates_dqkv() const {
    const std::int64_t d = layout.head_dim;
    return !fp8.present() || over == NormOver::projection || !(d == 16 || d == 32 || d == 64 || d == 128);
  }
  template <class F>
  auto map(F f) const {
    using U = decltype(f("", dqkv, Access::read));
    return RopeQkNormGrad<U>{f("dqkv", dqkv, updates_dqkv() ? Access::update : Access::read),
                             f("q_norm", q_norm, Access::read),
                             f("k_norm", k_norm, Access::read),
                             f("positions", positions, Access::read),
                             f("table", table, Access::read),
                             f("raw", raw, Access::read),
                             f("rstd", rstd, Access::read),
                             f("dq_norm", dq_norm, written_or_added(accumulate)),
                             f("dk_norm", dk_norm, written_or_added(accumulate)),
                             f("partial", partial, Access::write),
                             layout,
                             accumulate,
                             over,
                             fp8.map(f),
                             one_plus};
  }
};

// q and k move in and out once, v stays; the table is small and stays in cache.
inline double moved_qk_bytes(const Tensor& qkv, const HeadLayout& l) {
  return 2.0 * static_cast<double>(qkv.rows() * l.qk_heads() * l.head_dim) * static_cast<double>(size_of(qkv.dtype));
}
inline Cost cost(const RopeQkNorm<Tensor>& op) {
  return {.bytes = moved_qk_bytes(op.qkv, op.layout) + static_cast<double>(op.raw.bytes() + op.rstd.bytes())};
}
inline Cost cost(const RopeQkNormGrad<Tensor>& op) {
  double bytes = static_cast<double>(op.raw.bytes() + op.rstd.bytes());
  if (op.updates_dqkv()) bytes += moved_qk_bytes(op.dqkv, op.layout);
  if (op.fp8.present()) bytes += static_cast<double>(op.dqkv.bytes() + op.fp8.rows.bytes() + op.fp8.columns.bytes());
  return {.bytes = bytes};
}

}  // namespace redline::ops
