// The average of weights and sums of squares by tensor on the card: the CPU's numbers.
#include "optim/adamw.h"
#include "optim/cpu/kernels.h"
#include "optim/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

const auto kOnCpu = [](auto& op, auto& pool) { cpu::run(op, pool); };
const auto kOnCard = [](auto& op, auto& launch) { cuda::run(op, launch); };
const Agreement kFloat{.types = {DType::f32}};

class CudaAverageTest : public OnCard<::testing::TestWithParam<std::int64_t>> {};

TEST_P(CudaAverageTest, AverageIsTheCpus) {
  const std::int64_t n = GetParam();
  for (const float finite : {1.0f, 0.0f})
    for (const float share : {1.0f, 0.01f}) {
      Memory memory;
      expect_agreement(
          card(),
          Average<Tensor>{memory.uniform({n}), memory.uniform({n}), memory.object(StepState{.average = share}),
                          memory.object(UpdateResult{.finite = finite})},
          kOnCpu, kOnCard, kFloat);
    }
}

TEST_P(CudaAverageTest, ExchangeIsTheCpus) {
  Memory memory;
  const std::int64_t n = GetParam();
  Agreement exactly = kFloat;
  exactly.f32 = 0;
  expect_agreement(card(), Exchange<Tensor>{memory.uniform({n}), memory.uniform({n})}, kOnCpu, kOnCard, exactly);
}

TEST_P(CudaAverageTest, ACopyInFp32IsExact) {
  Memory memory;
  const std::int64_t n = GetParam();
  Agreement exactly = kFloat;
  exactly.f32 = 0;
  expect_agreement(card(), Refresh<Tensor>{memory.uniform({n}), memory.zeros({n})}, kOnCpu, kOnCard, exactly);
}

TEST_P(CudaAverageTest, SumsByTensorAreTheCpus) {
  const std::int64_t n = GetParam(), third = n / 3 / 4 * 4;
  const std::vector<std::int64_t> bounds = {0, third, third, n, 0, 0, third, third + (n - third) / 2};
  const auto tensors = static_cast<std::int64_t>(bounds.size() / 2);
  for (const bool difference : {false, true}) {
    Memory memory;
    const Tensor where = memory.array(DType::i64, {tensors, 2});
    std::memcpy(where.data, bounds.data(), static_cast<std::size_t>(where.bytes()));
    expect_agreement(
        card(),
        TensorSums<Tensor>{memory.uniform({n}, -3, 3), difference ? memory.uniform({n}, -3, 3) : Tensor{}, where,
                           memory.doubles(tensors), memory.array(DType::f64, {tensors, kTensorSlices})},
        kOnCpu, kOnCard, Agreement{.f32 = 1e-12, .types = {DType::f32}});
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaAverageTest, ::testing::Values(1, 3, 8, 1000, 4099, 300007));
INSTANTIATE_TEST_SUITE_P(RandomSizes, CudaAverageTest,
                         ::testing::ValuesIn(random_cases<std::int64_t>(4, [](auto draw) { return draw(50000); })));

}  // namespace
}  // namespace redline::optim
