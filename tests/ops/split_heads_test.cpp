// Heads in parts: every query of a part reads the keys and values that it reads in the whole, and each direction is the
// gradient of the other.
#include "ops/split_heads.h"

#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct SplitCase {
  std::int64_t n, heads, kv_heads, head_dim, ranks;
};
class SplitHeadsTest : public ::testing::TestWithParam<SplitCase> {};

TEST_P(SplitHeadsTest, QueriesKeepTheirKeysAndValues) {
  const auto [n, heads, kv_heads, d, ranks] = GetParam();
  const HeadLayout whole{heads, kv_heads, d}, part = part_of(whole, ranks);
  Memory memory;
  const Tensor x = memory.uniform({n, whole.qkv_width()}), parts = memory.zeros({ranks * n, part.qkv_width()});
  run_checked(memory, SplitHeads<Tensor>{x, parts, whole, ranks});
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t t = 0; t < n; ++t)
      for (std::int64_t h = 0; h < part.heads; ++h)
        for (std::int64_t e = 0; e < d; ++e) {
          const auto in_part = [&](std::int64_t head) {
            return parts.f32()[(r * n + t) * part.qkv_width() + head * d + e];
          };
          const auto in_whole = [&](std::int64_t head) { return x.f32()[t * whole.qkv_width() + head * d + e]; };
          const std::int64_t query = r * part.heads + h;
          ASSERT_EQ(in_part(h), in_whole(query));
          if (kv_heads == 0) continue;
          const std::int64_t key = h / (part.heads / part.kv_heads), of_whole = query / (heads / kv_heads);
          ASSERT_EQ(in_part(part.heads + key), in_whole(heads + of_whole)) << "key of query " << query;
          ASSERT_EQ(in_part(part.heads + part.kv_heads + key), in_whole(heads + kv_heads + of_whole)) << query;
        }
}

// <split(x), y> = <x, join(y)> for any x and y.
TEST_P(SplitHeadsTest, EachIsTheGradientOfTheOther) {
  const auto [n, heads, kv_heads, d, ranks] = GetParam();
  const HeadLayout whole{heads, kv_heads, d};
  const std::int64_t width = whole.qkv_width(), of_part = part_of(whole, ranks).qkv_width();
  Memory memory;
  const Tensor x = memory.uniform({n, width}), split = memory.zeros({ranks * n, of_part});
  const Tensor y = memory.uniform({ranks * n, of_part}), joined = memory.zeros({n, width});
  run_checked(memory, SplitHeads<Tensor>{x, split, whole, ranks});
  run_checked(memory, SplitHeads<Tensor>{joined, y, whole, ranks, true});
  double there = 0, back = 0;
  for (std::int64_t i = 0; i < split.elements(); ++i) there += static_cast<double>(split.f32()[i]) * y.f32()[i];
  for (std::int64_t i = 0; i < x.elements(); ++i) back += static_cast<double>(x.f32()[i]) * joined.f32()[i];
  EXPECT_NEAR(there, back, 1e-4 * std::sqrt(static_cast<double>(split.elements())));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SplitHeadsTest,
                         ::testing::Values(SplitCase{1, 2, 2, 4, 2}, SplitCase{7, 4, 2, 10, 4},
                                           SplitCase{5, 8, 1, 6, 8}, SplitCase{33, 8, 8, 16, 4},
                                           SplitCase{9, 8, 0, 16, 2}, SplitCase{3, 6, 3, 2, 2},
                                           SplitCase{5, 12, 3, 4, 2}, SplitCase{1, 4, 4, 2, 1}));

}  // namespace
}  // namespace redline::ops
