// Head and cross entropy on the card: with gradients and the loss alone, chunks that do and do not divide the rows,
// vocabularies from one entry to more than shared memory holds, odd ones whose rows are laid out apart.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

// What is written is zero before, and nothing is added to.
LmLoss<Tensor> head(Memory& memory, const Tensor& x, const Tensor& weight, const std::vector<std::int64_t>& targets,
                    std::int64_t chunk) {
  return {x,
          weight,
          memory.integers(targets),
          memory.zeros({x.rows()}),
          memory.doubles(1),
          memory.zeros({chunk, weight.rows()}),
          memory.zeros(x.shape),
          memory.zeros(weight.shape),
          false,
          false};
}

struct LmLossCase {
  std::int64_t n, d, vocab, chunk;
};
class CudaLmLossTest : public OnCard<::testing::TestWithParam<LmLossCase>> {};

TEST_P(CudaLmLossTest, AgreesWithTheCpu) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    std::vector<std::int64_t> ids = random_integers(n, vocab, 4);
    for (std::size_t i = 2; i < ids.size(); i += 5) ids[i] = i % 2 ? -1 : -100;
    const double size = 3 / std::sqrt(static_cast<double>(d));  // logits of about 1
    LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}, -size, size), ids, chunk);
    *op.loss_sum.as<double>() = 3.5;
    op.dweight = memory.uniform({vocab, d});
    op.accumulate_loss = op.accumulate_weight = accumulate;
    const auto results = expect_agreement(card(), op, kOnCpu, kOnCard, {.shifts = {0}});
    for (const auto& values : results) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= 0) continue;
        EXPECT_EQ(values.at("losses")[i], 0.0);
        for (std::size_t j = 0; j < static_cast<std::size_t>(d); ++j)
          EXPECT_EQ(values.at("dx")[i * static_cast<std::size_t>(d) + j], 0.0);
      }
    }
    op.dx = op.dweight = Tensor{};
    expect_agreement(card(), op, kOnCpu, kOnCard, {.shifts = {0}});
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLmLossTest,
                         ::testing::Values(LmLossCase{1, 1, 1, 1}, LmLossCase{1, 8, 267, 4}, LmLossCase{7, 5, 3, 2},
                                           LmLossCase{65, 24, 101, 32}, LmLossCase{128, 16, 257, 128},
                                           LmLossCase{40, 12, 1031, 13}, LmLossCase{200, 640, 267, 64},
                                           LmLossCase{70, 64, 32000, 32}, LmLossCase{9, 32, 151936, 4},
                                           LmLossCase{20, 16, 50257, 8}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaLmLossTest, ::testing::ValuesIn(random_cases<LmLossCase>(6, [](auto draw) {
                           const std::int64_t n = draw(200), d = 2 + draw(120), vocab = 2 + draw(3000);
                           return LmLossCase{n, d, vocab, draw(n)};
                         })));

class CudaLmLoss : public OnCard<> {};

// A batch that is all tail: nothing to learn, and nothing left over from before.
TEST_F(CudaLmLoss, WithoutATargetIsZero) {
  Memory memory;
  const LmLoss<Tensor> op =
      head(memory, memory.uniform({20, 16}), memory.uniform({267, 16}), std::vector<std::int64_t>(20, -1), 8);
  for (const auto& values : expect_agreement(card(), op, kOnCpu, kOnCard, {.shifts = {0}})) {
    for (const auto& [name, all] : values) {
      for (double v : all) ASSERT_EQ(v, 0.0) << name;
    }
  }
}

TEST_F(CudaLmLoss, HoldsWithLargeLogits) {
  Memory memory;
  const LmLoss<Tensor> op =
      head(memory, memory.uniform({4, 8}, 30, 40), memory.uniform({50, 8}, -9, 9), {1, 2, 3, 4}, 4);
  // Logits in the thousands: rounded to bf16 they are off by several, so only that they are numbers can be asked.
  constexpr double kAnything = std::numeric_limits<double>::infinity();
  const auto results = expect_agreement(card(), op, kOnCpu, kOnCard, {.f32 = 1e-3, .bf16 = kAnything, .shifts = {0}});
  for (const auto& values : results) {
    for (const auto& [name, all] : values) {
      for (double v : all) EXPECT_TRUE(std::isfinite(v)) << name;
    }
  }
}

}  // namespace
}  // namespace redline::ops
