// Orthogonal matrices on the card are the CPU's: batches of every shape, in fp32 closely and in bf16 as its rounding
// has it.
#include "ops/cuda/both_backends.h"
#include "ops/cuda/kernels.h"

namespace redline::ops {
namespace {

struct OrthogonalizeCase {
  std::int64_t count, rows, columns;
};
class CudaOrthogonalizeTest : public OnCard<::testing::TestWithParam<OrthogonalizeCase>> {};

// Of unit norm, as Muon gives them. Both x and y are compared: one is the result, the other the round before it.
TEST_P(CudaOrthogonalizeTest, AgreesWithTheCpu) {
  const auto [count, rows, columns] = GetParam();
  const std::int64_t side = std::min(rows, columns);
  for (const Polynomials which : {Polynomials::quintic, Polynomials::polar_express})
    for (const std::int64_t rounds : {1, 5, 6}) {
      Memory memory;
      const double size = std::sqrt(3.0 / static_cast<double>(rows * columns)) / 1.02;
      const Orthogonalize<Tensor> op{memory.uniform({count, rows, columns}, -size, size),
                                     memory.zeros({count, rows, columns}),
                                     memory.zeros({count, side, side}),
                                     memory.zeros({count, side, side}),
                                     {},
                                     which,
                                     rounds};
      // A product in bf16 is wrong by 2^-9, and steep polynomials make more of that in each round.
      expect_agreement(card(), op, kOnCpu, kOnCard, {.f32 = 2e-3, .bf16 = 8e-2, .shifts = {0}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaOrthogonalizeTest,
                         ::testing::Values(OrthogonalizeCase{1, 1, 1}, OrthogonalizeCase{3, 7, 5},
                                           OrthogonalizeCase{2, 33, 129}, OrthogonalizeCase{2, 129, 33},
                                           OrthogonalizeCase{4, 64, 64}, OrthogonalizeCase{3, 128, 320},
                                           OrthogonalizeCase{2, 512, 192}));

// A product large enough to be tuned, with something added that is not its output.
TEST(CudaOrthogonalize, TunedBatchesAgreeAsWell) {
  if (device::cuda_status().cards.empty()) GTEST_SKIP() << "no GPU";
  device::CudaDevice card;
  Memory memory;
  const double size = std::sqrt(3.0 / (768.0 * 1024.0)) / 1.02;
  const Orthogonalize<Tensor> op{memory.uniform({2, 768, 1024}, -size, size), memory.zeros({2, 768, 1024}),
                                 memory.zeros({2, 768, 768}), memory.zeros({2, 768, 768}),
                                 memory.array(DType::u8, {kProductWorkspaceBytes})};
  expect_agreement(card, op, kOnCpu, kOnCard, {.bf16 = 8e-2, .types = {DType::bf16}, .shifts = {0}});
}

}  // namespace
}  // namespace redline::ops
