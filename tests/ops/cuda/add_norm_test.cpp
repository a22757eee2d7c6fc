// Residual add and RMSNorm on the card, with and without a branch, over rows of a warp, of several and of a block.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct AddNormCase {
  std::int64_t n, d;
};
class CudaAddNormTest : public OnCard<::testing::TestWithParam<AddNormCase>> {};

TEST_P(CudaAddNormTest, AgreesWithTheCpu) {
  const auto [n, d] = GetParam();
  for (bool with_branch : {true, false}) {
    Memory memory;
    const Tensor absent, residual_in = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor branch = with_branch ? memory.uniform({n, d}) : absent;
    const Tensor residual_out = with_branch ? memory.zeros({n, d}) : absent;
    const Tensor y = memory.zeros({n, d}), rstd = memory.zeros({n});
    expect_agreement(card(), AddNorm<Tensor>{residual_in, branch, weight, residual_out, y, rstd, 1e-5f}, kOnCpu,
                     kOnCard);
    const Tensor dy = memory.uniform({n, d}), dresidual = memory.uniform({n, d}), dweight = memory.uniform({d});
    expect_agreement(card(),
                     AddNormGrad<Tensor>{dy, residual_in, weight, rstd, dresidual, dweight,
                                         memory.zeros({kRowGroups, d}), with_branch, with_branch},
                     kOnCpu, kOnCard);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAddNormTest,
                         ::testing::Values(AddNormCase{1, 5}, AddNormCase{1, 64}, AddNormCase{3, 7},
                                           AddNormCase{300, 24}, AddNormCase{33, 50}, AddNormCase{64, 256},
                                           AddNormCase{100, 129}, AddNormCase{2000, 640}, AddNormCase{257, 768},
                                           AddNormCase{1300, 1024}, AddNormCase{515, 2304}, AddNormCase{40, 4096},
                                           AddNormCase{5, 8192}, AddNormCase{3, 8191}, AddNormCase{1, 2048},
                                           AddNormCase{1111, 2048}, AddNormCase{300, 1528}, AddNormCase{300, 1536},
                                           AddNormCase{280, 2560}, AddNormCase{9, 5120}, AddNormCase{9, 5128},
                                           AddNormCase{600, 401}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaAddNormTest, ::testing::ValuesIn(random_cases<AddNormCase>(6, [](auto draw) {
                           const std::int64_t n = draw(700);
                           return AddNormCase{n, 4 + draw(3000)};  // of 1 the gradient is a difference of equals
                         })));

}  // namespace
}  // namespace redline::ops
