// SwiGLU on the card; its gradient in place too, and where exp overflows.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct SwiGluCase {
  std::int64_t n, f;
};
class CudaSwiGluTest : public OnCard<::testing::TestWithParam<SwiGluCase>> {};

TEST_P(CudaSwiGluTest, AgreesWithTheCpu) {
  const auto [n, f] = GetParam();
  Memory memory;
  const Tensor gate_up = memory.uniform({n, 2 * f}, -8, 8);
  expect_agreement(card(), SwiGlu<Tensor>{gate_up, memory.zeros({n, f})}, kOnCpu, kOnCard);
  const Tensor dy = memory.uniform({n, f});
  expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, memory.zeros({n, 2 * f})}, kOnCpu, kOnCard);
  expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, gate_up}, kOnCpu, kOnCard);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSwiGluTest,
                         ::testing::Values(SwiGluCase{1, 1}, SwiGluCase{3, 7}, SwiGluCase{64, 24}, SwiGluCase{33, 704},
                                           SwiGluCase{129, 2752}, SwiGluCase{1, 6144}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaSwiGluTest, ::testing::ValuesIn(random_cases<SwiGluCase>(6, [](auto draw) {
                           const std::int64_t n = draw(500);
                           return SwiGluCase{n, draw(3000)};
                         })));

class CudaSwiGlu : public OnCard<> {};

TEST_F(CudaSwiGlu, HoldsWithLargeGates) {
  Memory memory;
  const Tensor gate_up = memory.uniform({9, 128}, -300, 300), dy = memory.uniform({9, 64});
  expect_agreement(card(), SwiGlu<Tensor>{gate_up, memory.zeros({9, 64})}, kOnCpu, kOnCard);
  expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, memory.zeros({9, 128})}, kOnCpu, kOnCard);
}

}  // namespace
}  // namespace redline::ops
