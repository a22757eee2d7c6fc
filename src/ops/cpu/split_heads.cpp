// Heads in parts and together again: whole heads are copied, and those that stand in several parts are added up.
// A task is a range of tokens.
#include "ops/split_heads.h"

#include <algorithm>

#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {

void run(const SplitHeads<Tensor>& op, ThreadPool& pool) {
  const HeadLayout whole = op.layout, part = part_of(whole, op.ranks);
  const std::int64_t n = op.whole.rows(), d = whole.head_dim, repeats = op.repeats();
  for_rows(pool, n, whole.qkv_width(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const row = op.whole.f32() + t * whole.qkv_width();
      const auto head_of_part = [&](std::int64_t r, std::int64_t head) {
        return op.parts.f32() + (r * n + t) * part.qkv_width() + head * d;
      };
      if (op.join) std::fill_n(row + whole.heads * d, 2 * whole.kv_heads * d, 0.0f);
      for (std::int64_t r = 0; r < op.ranks; ++r) {
        float* const queries = row + r * part.heads * d;
        if (op.join)
          std::copy_n(head_of_part(r, 0), part.heads * d, queries);
        else
          std::copy_n(queries, part.heads * d, head_of_part(r, 0));
        for (std::int64_t head = 0; head < 2 * part.kv_heads; ++head) {  // keys, then values
          const std::int64_t values = head / part.kv_heads, unit = r * part.kv_heads + head % part.kv_heads;
          float* const in_whole = row + (whole.heads + values * whole.kv_heads + unit / repeats) * d;
          float* const in_part = head_of_part(r, part.heads + head);
          if (op.join)
            for (std::int64_t j = 0; j < d; ++j) in_whole[j] += in_part[j];
          else
            std::copy_n(in_whole, d, in_part);
        }
      }
    }
  });
}

}  // namespace redline::ops::cpu
