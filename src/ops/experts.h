// Mixtures of experts: where a token goes, the order of rows in which every expert finds its own, and the way back. The
// experts' products are grouped linears (ops/grouped.h). n rows of tokens, E experts, k of them a token.
//
// route:  logits = x * weight^T, with sums in fp32 whatever the operands are
//   probs = softmax(logits) over all experts;  lse = logsumexp(logits)
//   choices: the k largest of probs, the largest first, of equal ones the lower expert first
//   weights = probs of the choices, or with `normalise` divided by their sum
//   Padding goes nowhere: there choices are -1, and weights, probs and lse 0.
// sort_by_expert:  the m rows of the experts' inputs, those of expert 0 first, an expert's in the order of tokens.
//   rows[s] = t * k + j: row s is that of token t's choice j.  places[t][j] = s, the inverse, or -1 in padding.
//   Expert e's rows are offsets[e] to offsets[e + 1]. With `align` every expert begins at a multiple of it. The rows
//   that fill it up belong to no token, as do those after the last expert: their rows[s] is -1.
// gather_rows:  y[s] = x[t];  0 where a row belongs to no token.  Its gradient is combine without weights.
// combine:  out[t] (+)= sum over j of weights[t][j] * y[places[t][j]], in fp32 and in the order of j;  0 in padding.
//   Gradient: dy[s] = weights[t][j] * dout[t], 0 where a row belongs to no token;
//             dweights[t][j] = dot(dout[t], y[places[t][j]]), 0 in padding.
// route_grad:  g[j] = dweights[j], or with `normalise` (dweights[j] - dot(dweights, weights)) / sum of the chosen probs
//   dprobs[e] = balance[layer][e] + g of the choice that is e;   everything is 0 in padding
//   dlogits   = probs * (dprobs - dot(probs, dprobs)) + balance[layer][E] * lse * probs
//   dx (+)= dlogits * weight;  dweight (+)= dlogits^T * x
// router_load:  row `layer` of load = [E counts | E sums of probs over tokens | sum of entropies | sum of lse^2]
//
// balance_loss, of a micro-batch: T tokens in each of L layers, c[l][e] counts and p[l][e] sums of probs.
//   balance = E / (L T^2) * sum over l and e of c[l][e] * p[l][e]    the mean over layers: k where every expert has its
//             share, E where one has all
//   balance = E / (L T)^2 * sum over e of c[e] * p[e], with `pooled`: c and p are sums over layers
//   z_loss  = sum of lse^2 / (L T)
// Losses are sums over pairs and divided by their number in the update, so these means are multiplied by the pairs of
// the micro-batch. A step's value is then the mean of its micro-batches, weighted by pairs. Counts have no gradient:
//   gradient[l][e] = coefficient * pairs * E / (L T^2) * c[l][e], or with `pooled` * E / (L T)^2 * c[e]
//   gradient[l][E] = z_coefficient * pairs * 2 / (L T)
#pragma once

#include "base/tensor.h"
#include "ops/add_norm.h"
#include "ops/fp8.h"
#include "ops/how.h"

namespace redline::ops {

inline constexpr std::int32_t kNowhere = -1;

// Rows of the experts' inputs that so many choices need at most.
inline std::int64_t expert_rows(std::int64_t tokens, std::int64_t per_token, std::int64_t experts, std::int64_t align) {
  return (tokens * per_token + experts * (align - 1) + align - 1) / align * align;
}
// A card sorts so many choices at a time, and keeps how many of them each expert has.
inline constexpr std::int64_t kSortPiece = 1024;
inline std::int64_t sort_scratch_bytes(std::int64_t choices, std::int64_t experts) {
  return (choices + kSortPiece - 1) / kSortPiece * experts * static_cast<std::int64_t>(sizeof(std::int32_t));
}
// Columns of router_load, and of balance_loss's totals.
inline std::int64_t load_columns(std::int64_t experts) { return 2 * experts + 2; }
inline std::int64_t total_columns(std::int64_t experts) { return experts + 1; }

template <class T>
struct Route {
  static constexpr std::string_view kName = "route";
  T x;            // [n, d]
  T weight;       // [E, d]
  T doc_offsets;  // [documents + 1] i32: rows from its last entry on are padding; absent: there is none
  T probs;        // [n, E] f32  =
  T lse;          // [n] f32     =
  T choices;      // [n, k] i32  =
  T weights;      // [n, k] f32  =
  bool normalise{};
  T workspace{};  // bytes of scratch for a library; absent: it does without
  ProductHow how{};
  std::int64_t layer{};  // of those with a router

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Route<U>{f("x", x, Access::read),
                    f("weight", weight, Access::read),
                    f("doc_offsets", doc_offsets, Access::read),
                    f("probs", probs, Access::write),
                    f("lse", lse, Access::write),
                    f("choices", choices, Access::write),
                    f("weights", weights, Access::write),
                    normalise,
                    f("workspace", workspace, Access::write),
                    how,
                    layer};
  }
  double flops() const { return 2.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements()); }
};

template <class T>
struct RouteGrad {
  static constexpr std::string_view kName = "route_grad";
  T x;         // [n, d]
  T weight;    // [E, d]
  T probs;     // [n, E] f32
  T lse;       // [n] f32
  T choices;   // [n, k] i32
  T weights;   // [n, k] f32
  T dweights;  // [n, k] f32
  T balance;   // [layers, E + 1] f32: of BalanceLoss; absent: 0
  T dx;        // [n, d]  = or +=
  T dweight;   // [E, d]  = or +=
  T dlogits;   // [n, E] f32  scratch; a card may keep two numbers of bf16 in each
  bool normalise{};
  bool accumulate{};         // dx
  bool accumulate_weight{};  // dweight
  T workspace{};
  ProductHow how{};
  std::int64_t layer{};

  const float* own_balance() const { return balance.present() ? balance.f32() + layer * balance.columns() : nullptr; }
  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return RouteGrad<U>{f("x", x, Access::read),
                        f("weight", weight, Access::read),
                        f("probs", probs, Access::read),
                        f("lse", lse, Access::read),
                        f("choices", choices, Access::read),
                        f("weights", weights, Access::read),
                        f("dweights", dweights, Access::read),
                        f("balance", balance, Access::read),
                        f("dx", dx, written_or_added(accumulate)),
                        f("dweight", dweight, written_or_added(accumulate_weight)),
                        f("router dlogits", dlogits, Access::write),
                        normalise,
                        accumulate,
                        accumulate_weight,
                        f("workspace", workspace, Access::write),
                        how,
                        layer};
  }
  double flops() const { return 4.0 * static_cast<double>(x.rows()) * static_cast<double>(weight.elements()); }
};

template <class T>
struct SortByExpert {
  static constexpr std::string_view kName = "sort_by_expert";
  T choices;      // [n, k] i32
  T offsets;      // [E + 1] i32  =
  T rows;         // [m] i32      =  m = expert_rows(n, k, E, align)
  T places;       // [n, k] i32   =
  T counts;       // [E] i32      =  rows that belong to tokens
  T temporary{};  // sort_scratch_bytes(n k, E) of scratch; a card's
  std::int64_t align = 1;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", choices, Access::read));
    return SortByExpert<U>{f("choices", choices, Access::read),
                           f("offsets", offsets, Access::write),
                           f("rows", rows, Access::write),
                           f("places", places, Access::write),
                           f("counts", counts, Access::write),
                           f("temporary", temporary, Access::write),
                           align};
  }
};

// A kernel may go by rows, which cover y, or by tokens and their places, so that x is read once.
template <class T>
struct GatherRows {
  static constexpr std::string_view kName = "gather_rows";
  static constexpr bool kCastsOnCard = true;
  T x;                 // [n, d]
  T rows;              // [m] i32
  T places;            // [n, k] i32
  T y;                 // [m, d]  =  or absent with fp8
  Fp8Copies<T> fp8{};  // of y

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return GatherRows<U>{f("x", x, Access::read), f("rows", rows, Access::read), f("places", places, Access::read),
                         f("y", y, Access::write), fp8.map(f)};
  }
};

template <class T>
struct Combine {
  static constexpr std::string_view kName = "combine";
  T y;        // [m, d]
  T weights;  // [n, k] f32; absent: 1
  T rows;     // [m] i32: its gradient's; absent where it has none
  T places;   // [n, k] i32
  T out;      // [n, d]  = or +=
  bool accumulate{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", y, Access::read));
    return Combine<U>{
        f("y", y, Access::read),           f("weights", weights, Access::read),         f("rows", rows, Access::read),
        f("places", places, Access::read), f("out", out, written_or_added(accumulate)), accumulate};
  }
};

template <class T>
struct CombineGrad {
  static constexpr std::string_view kName = "combine_grad";
  static constexpr bool kCastsOnCard = true;
  T dout;              // [n, d]
  T y;                 // [m, d]
  T weights;           // [n, k] f32
  T rows;              // [m] i32
  T places;            // [n, k] i32
  T dy;                // [m, d]      =  or absent with fp8
  T dweights;          // [n, k] f32  =
  Fp8Copies<T> fp8{};  // of dy

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", y, Access::read));
    return CombineGrad<U>{f("dout", dout, Access::read),          f("y", y, Access::read),
                          f("weights", weights, Access::read),    f("rows", rows, Access::read),
                          f("places", places, Access::read),      f("dy", dy, Access::write),
                          f("dweights", dweights, Access::write), fp8.map(f)};
  }
};

template <class T>
struct RouterLoad {
  static constexpr std::string_view kName = "router_load";
  static constexpr Again kAgain = Again::never;
  T probs;    // [n, E] f32
  T lse;      // [n] f32
  T counts;   // [E] i32
  T load;     // [layers, 2 E + 2] f64: one row =, the others stay
  T partial;  // [kRowGroups, E + 2] f64  scratch
  std::int64_t layer{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", probs, Access::read));
    return RouterLoad<U>{f("probs", probs, Access::read),      f("lse", lse, Access::read),
                         f("counts", counts, Access::read),    f("load", load, Access::update),
                         f("partial", partial, Access::write), layer};
  }
};

template <class T>
struct BalanceLoss {
  static constexpr std::string_view kName = "balance_loss";
  static constexpr Again kAgain = Again::never;
  T load;      // [layers, 2 E + 2] f64
  T targets;   // [n] i32, negative where there is none
  T gradient;  // [layers, E + 1] f32  =  or absent
  T totals;    // [layers + 1, E + 1] f64  = or +=: a row a layer with counts and the sum of entropies, and one that
               // begins with balance and z_loss, times pairs both
  std::int64_t per_token{};
  float coefficient{}, z_coefficient{};
  bool accumulate{};
  bool pooled{};  // over layers, as transformers has it

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", load, Access::read));
    return BalanceLoss<U>{f("load", load, Access::read),
                          f("targets", targets, Access::read),
                          f("gradient", gradient, Access::write),
                          f("totals", totals, written_or_added(accumulate)),
                          per_token,
                          coefficient,
                          z_coefficient,
                          accumulate,
                          pooled};
  }
};

}  // namespace redline::ops
