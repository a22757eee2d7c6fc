// The sum of two arrays on the card: every element, in vectors and one by one, also in place.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

class CudaAddTest : public OnCard<::testing::TestWithParam<Shape>> {};

TEST_P(CudaAddTest, AgreesWithTheCpu) {
  Memory memory;
  const Tensor a = memory.uniform(GetParam()), b = memory.uniform(GetParam());
  expect_agreement(card(), Add<Tensor>{a, b, memory.zeros(GetParam())}, kOnCpu, kOnCard, {.f32 = 0, .bf16 = 4e-3});
  expect_agreement(card(), Add<Tensor>{a, b, a}, kOnCpu, kOnCard, {.f32 = 0, .bf16 = 4e-3});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAddTest,
                         ::testing::Values(Shape{1}, Shape{1, 7}, Shape{13, 24}, Shape{300, 65}, Shape{4096, 640}));

}  // namespace
}  // namespace redline::ops
