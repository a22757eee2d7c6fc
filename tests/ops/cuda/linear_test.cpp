// Linear layers on the card: each of their three products is the one that is meant.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct LinearCase {
  std::int64_t n, k, m;
};
class CudaLinearTest : public OnCard<::testing::TestWithParam<LinearCase>> {};

TEST_P(CudaLinearTest, AgreesWithTheCpu) {
  const auto [n, k, m] = GetParam();
  Memory memory;
  const Tensor x = memory.uniform({n, k}), weight = memory.uniform({m, k}), dy = memory.uniform({n, m});
  const Agreement aligned{.shifts = {0}};  // gemm_test.cpp has others
  expect_agreement(card(), Linear<Tensor>{x, weight, memory.zeros({n, m})}, kOnCpu, kOnCard, aligned);
  expect_agreement(card(), LinearInputGrad<Tensor>{dy, weight, memory.zeros({n, k})}, kOnCpu, kOnCard, aligned);
  // What is added to a gradient is in fp32, whatever the operands are.
  for (bool accumulate : {false, true})
    expect_agreement(card(), LinearWeightGrad<Tensor>{x, dy, memory.uniform({m, k}), accumulate}, kOnCpu, kOnCard,
                     {.bf16 = 1e-5, .shifts = {0}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLinearTest,
                         ::testing::Values(LinearCase{1, 1, 1}, LinearCase{1, 64, 128}, LinearCase{7, 5, 3},
                                           LinearCase{65, 24, 37}, LinearCase{512, 256, 768}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaLinearTest, ::testing::ValuesIn(random_cases<LinearCase>(6, [](auto draw) {
                           const std::int64_t n = draw(400), k = draw(300);
                           return LinearCase{n, k, draw(300)};
                         })));

}  // namespace
}  // namespace redline::ops
