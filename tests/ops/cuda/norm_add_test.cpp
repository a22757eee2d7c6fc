// RMSNorm of a branch added to the residual stream on the card, over rows of a warp, of several and of a block.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct NormAddCase {
  std::int64_t n, d;
};
class CudaNormAddTest : public OnCard<::testing::TestWithParam<NormAddCase>> {};

TEST_P(CudaNormAddTest, AgreesWithTheCpu) {
  const auto [n, d] = GetParam();
  Memory memory;
  expect_agreement(card(),
                   NormAdd<Tensor>{memory.uniform({n, d}, -2, 2), memory.uniform({n, d}), memory.uniform({d}, 0.5, 1.5),
                                   memory.zeros({n, d}), memory.zeros({n}), 1e-5f},
                   kOnCpu, kOnCard);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaNormAddTest,
                         ::testing::Values(NormAddCase{1, 1}, NormAddCase{1, 64}, NormAddCase{3, 7},
                                           NormAddCase{300, 24}, NormAddCase{64, 256}, NormAddCase{100, 129},
                                           NormAddCase{257, 768}, NormAddCase{515, 2304}, NormAddCase{1111, 2048},
                                           NormAddCase{40, 4096}, NormAddCase{5, 8192}, NormAddCase{3, 8191}));

}  // namespace
}  // namespace redline::ops
