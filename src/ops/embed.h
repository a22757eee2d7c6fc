// Embedding: y[i] = scale * weight[tokens[i]], the scale 1 unless a family has another. Gradient: dweight[t] (+)= sum
// of scale * dy[i] over tokens[i] == t, in the order of i. A
// card sorts the tokens for it first, so that every row of the table is one run of them. The sort needs nothing of the
// backward pass.
#pragma once

#include "base/tensor.h"

namespace redline::ops {

inline constexpr std::int32_t kNoPadding = -1;  // else the token whose row gets no gradient

template <class T>
struct Embed {
  static constexpr std::string_view kName = "embed";
  T tokens;  // [n] i32
  T weight;  // [V, d]
  T y;       // [n, d]  =
  std::int32_t padding = kNoPadding;
  float scale = 1;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tokens, Access::read));
    return Embed<U>{f("tokens", tokens, Access::read), f("weight", weight, Access::read), f("y", y, Access::write),
                    padding, scale};
  }
};

template <class T>
struct EmbedGrad {
  static constexpr std::string_view kName = "embed_grad";
  T tokens;           // [n] i32
  T dy;               // [n, d]
  T dweight;          // [V, d]  = or +=
  bool accumulate{};  // += : a tied head has written it before
  std::int32_t padding = kNoPadding;
  T order{};   // [2, n] i32: of SortTokens; a card's
  T pieces{};  // [piece_rows, d]  scratch: parts of runs that are too long for one block; a card's
  float scale = 1;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tokens, Access::read));
    return EmbedGrad<U>{f("tokens", tokens, Access::read),
                        f("dy", dy, Access::read),
                        f("dweight", dweight, written_or_added(accumulate)),
                        accumulate,
                        padding,
                        f("order", order, Access::read),
                        f("pieces", pieces, Access::write),
                        scale};
  }
};

template <class T>
struct SortTokens {
  static constexpr std::string_view kName = "sort_tokens";
  T tokens;     // [n] i32
  T order;      // [2, n] i32  =  the tokens in ascending order, equal ones as they stood; and where each stood
  T temporary;  // [sort_bytes(n)] u8  scratch; a card's
  std::int64_t vocab{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", tokens, Access::read));
    return SortTokens<U>{f("tokens", tokens, Access::read), f("order", order, Access::write),
                         f("temporary", temporary, Access::write), vocab};
  }
};

// Positions before they are sorted, and the memory of the sort itself: tokens and positions once more, and its
// counters.
inline std::int64_t sort_bytes(std::int64_t n) { return 16 * n + (std::int64_t{1} << 20); }

// Runs are added up in chunks of so many tokens, or of twice as many where their pieces, two a chunk, would be too
// large.
inline constexpr std::int64_t kEmbedChunk = 64, kMostPieceBytes = std::int64_t{48} << 20;
inline std::int64_t piece_rows(std::int64_t n, std::int64_t chunk) { return 2 * ((n + chunk - 1) / chunk); }
inline std::int64_t piece_rows_within_limit(std::int64_t n, std::int64_t d) {
  std::int64_t chunk = kEmbedChunk;
  while (4 * d * piece_rows(n, chunk) > kMostPieceBytes && chunk < n) chunk *= 2;
  return piece_rows(n, chunk);
}

// Only the rows looked up are moved, not the table.
inline Cost cost(const Embed<Tensor>& op) {
  return {.bytes = static_cast<double>(op.tokens.bytes() + 2 * op.y.bytes())};
}
// Adding moves each row three times: dy in, dweight in and out. Writing also clears the whole table once.
inline Cost cost(const EmbedGrad<Tensor>& op) {
  return {.bytes =
              static_cast<double>(op.tokens.bytes() + 3 * op.dy.bytes() + (op.accumulate ? 0 : op.dweight.bytes()))};
}

}  // namespace redline::ops
