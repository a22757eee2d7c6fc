// The sum of ranks on CPUs: over ranks one after the other, from rank 0 on, whoever computes it. So all_reduce and
// reduce_shards have the same bits, and a run repeats.
#pragma once

#include <cstdint>
#include <vector>

#include "base/small_floats.h"

namespace redline::dist {

inline float wide(std::uint16_t bf16) { return f32_from_bf16(bf16); }
inline float wide(float x) { return x; }
inline double wide(double x) { return x; }

// Elements [0, n) of the sum over `parts`, one a rank, given to take(i, sum) block by block: a destination may be one
// of the parts, and it is written only behind what is read.
template <class From, class Sum, class Take>
void fold(const std::vector<const From*>& parts, std::int64_t n, const Take& take) {
  constexpr std::int64_t kBlock = 1024;
  Sum sum[kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = begin + kBlock < n ? kBlock : n - begin;
    for (std::int64_t i = 0; i < count; ++i) sum[i] = wide(parts[0][begin + i]);
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
      const From* const part = parts[rank] + begin;
      for (std::int64_t i = 0; i < count; ++i) sum[i] += wide(part[i]);
    }
    take(begin, sum, count);
  }
}

}  // namespace redline::dist
