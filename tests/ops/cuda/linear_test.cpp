// Linear layers on the card: each of their three products is the one that is meant. Orthogonal matrices are the CPU's:
// batches of every shape, in fp32 closely and in bf16 as its rounding has it.
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct LinearCase {
  std::int64_t n, k, m;
};
class CudaLinearTest : public OnCard<::testing::TestWithParam<LinearCase>> {};

TEST_P(CudaLinearTest, AgreesWithTheCpu) {
  const auto [n, k, m] = GetParam();
  Memory memory;
  const Tensor x = memory.uniform({n, k}), weight = memory.uniform({m, k}), dy = memory.uniform({n, m});
  const Agreement aligned{.shifts = {0}};  // gemm_test.cpp has others
  expect_agreement(card(), Linear<Tensor>{x, weight, memory.zeros({n, m})}, aligned);
  const Tensor bias = memory.uniform({m});
  expect_agreement(card(), Linear<Tensor>{.x = x, .weight = weight, .y = memory.zeros({n, m}), .bias = bias}, aligned);
  expect_agreement(card(), LinearInputGrad<Tensor>{dy, weight, memory.zeros({n, k})}, aligned);
  // What is added to a gradient is in fp32, whatever the operands are.
  for (bool accumulate : {false, true})
    expect_agreement(card(), LinearWeightGrad<Tensor>{x, dy, memory.uniform({m, k}), accumulate},
                     {.bf16 = 1e-5, .shifts = {0}});
  for (bool accumulate : {false, true})
    expect_agreement(card(), BiasGrad<Tensor>{dy, memory.uniform({m}), accumulate, memory.zeros({kRowGroups, m})},
                     {.bf16 = 1e-5});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLinearTest,
                         ::testing::Values(LinearCase{1, 1, 1}, LinearCase{1, 64, 128}, LinearCase{7, 5, 3},
                                           LinearCase{65, 24, 37}, LinearCase{512, 256, 768}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaLinearTest, ::testing::ValuesIn(random_cases<LinearCase>(6, [](auto draw) {
                           const std::int64_t n = draw(400), k = draw(300);
                           return LinearCase{n, k, draw(300)};
                         })));

struct OrthogonalizeCase {
  std::int64_t count, rows, columns;
};
class CudaOrthogonalizeTest : public OnCard<::testing::TestWithParam<OrthogonalizeCase>> {};

// Matrices of unit norm, as Muon gives them. Both x and y are compared: one is the result, the other the round before
// it.
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
      expect_agreement(card(), op, {.f32 = 2e-3, .bf16 = 8e-2, .shifts = {0}});
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaOrthogonalizeTest,
                         ::testing::Values(OrthogonalizeCase{1, 1, 1}, OrthogonalizeCase{3, 7, 5},
                                           OrthogonalizeCase{2, 33, 129}, OrthogonalizeCase{2, 129, 33},
                                           OrthogonalizeCase{4, 64, 64}, OrthogonalizeCase{3, 128, 320},
                                           OrthogonalizeCase{2, 512, 192}));

class CudaOrthogonalize : public OnCard<> {};

// A product large enough to be tuned, with something added that is not its output.
TEST_F(CudaOrthogonalize, TunedBatchesAgreeAsWell) {
  Memory memory;
  const double size = std::sqrt(3.0 / (768.0 * 1024.0)) / 1.02;
  const Orthogonalize<Tensor> op{memory.uniform({2, 768, 1024}, -size, size), memory.zeros({2, 768, 1024}),
                                 memory.zeros({2, 768, 768}), memory.zeros({2, 768, 768}),
                                 memory.array(DType::u8, {kProductWorkspaceBytes})};
  expect_agreement(card(), op, {.bf16 = 8e-2, .types = {DType::bf16}, .shifts = {0}});
}

}  // namespace
}  // namespace redline::ops
