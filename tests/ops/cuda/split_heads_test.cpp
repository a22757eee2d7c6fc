// Heads in parts and together again, on the card.
#include "ops/split_heads.h"

#include "ops/cuda/fp8_check.h"

namespace redline::ops {
namespace {

struct SplitCase {
  std::int64_t n, heads, kv_heads, head_dim, ranks;
};
class CudaSplitHeadsTest : public OnCard<::testing::TestWithParam<SplitCase>> {};

TEST_P(CudaSplitHeadsTest, AgreesWithTheCpu) {
  const auto [n, heads, kv_heads, d, ranks] = GetParam();
  const HeadLayout whole{heads, kv_heads, d};
  const std::int64_t width = whole.qkv_width(), of_part = part_of(whole, ranks).qkv_width();
  Memory memory;
  expect_agreement(card(),
                   SplitHeads<Tensor>{memory.uniform({n, width}), memory.zeros({ranks * n, of_part}), whole, ranks});
  expect_agreement(
      card(), SplitHeads<Tensor>{memory.zeros({n, width}), memory.uniform({ranks * n, of_part}), whole, ranks, true});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSplitHeadsTest,
                         ::testing::Values(SplitCase{1, 2, 2, 4, 2}, SplitCase{7, 4, 2, 10, 4},
                                           SplitCase{5, 8, 1, 6, 8}, SplitCase{300, 32, 8, 128, 4},
                                           SplitCase{129, 32, 0, 64, 8}, SplitCase{65, 12, 3, 64, 2}));

}  // namespace
}  // namespace redline::ops
