// The heads of queries, keys and values in parts, one for each rank that has a part of a row (docs/ranks.md). A row of
// `whole` is [q heads | k heads | v heads] as in ops/rope_qk_norm.h; without kv_heads it is heads alone. Part r has the
// q heads from r heads/ranks on, and the heads of keys and values that these read: where ranks outnumber these, or cut
// across their groups, a head stands in several parts. Counted over all parts, head u of the keys of parts is head
// u / repeats of `whole`.
//   split:  parts[r][t] = the columns of part r of whole[t]
//   join:   whole[t] = these columns of all parts; heads that stand in several are added up, part after part
// Each is the gradient of the other.
#pragma once

#include <numeric>

#include "base/tensor.h"
#include "ops/rope_qk_norm.h"

namespace redline::ops {

// The heads that one of so many ranks has: its queries in groups that read one head each.
inline HeadLayout part_of(const HeadLayout& l, std::int64_t ranks) {
  const std::int64_t heads = l.heads / ranks;
  const std::int64_t kv_heads = l.kv_heads == 0 ? 0 : heads / std::gcd(heads, l.heads / l.kv_heads);
  return {heads, kv_heads, l.head_dim};
}

template <class T>
struct SplitHeads {
  static constexpr std::string_view kName = "split_heads";
  T whole;  // [n, width of layout]             =  where they are joined
  T parts;  // [ranks * n, width of a part]     =  where they are split
  HeadLayout layout{};
  std::int64_t ranks{};
  bool join{};

  std::int64_t repeats() const {
    return layout.kv_heads == 0 ? 1 : ranks * part_of(layout, ranks).kv_heads / layout.kv_heads;
  }
  template <class F>
  auto map(F f) const {
    using U = decltype(f("", whole, Access::read));
    return SplitHeads<U>{f("whole", whole, join ? Access::write : Access::read),
                         f("parts", parts, join ? Access::read : Access::write), layout, ranks, join};
  }
};

}  // namespace redline::ops
