// Head and cross entropy on the card: with gradients and the loss alone, chunks that do and do not divide the rows,
// vocabularies from one entry to more than shared memory holds, odd ones whose rows are laid out apart; and with the
// gradients' operands in eight bits.
#include "ops/lm_head.h"
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

class CudaLmLossTest : public OnCard<::testing::TestWithParam<LmLossCase>> {};

TEST_P(CudaLmLossTest, AgreesWithTheCpu) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
    const double size = 3 / std::sqrt(static_cast<double>(d));  // logits of about 1
    LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}, -size, size), ids, chunk);
    *op.loss_sum.as<double>() = 3.5;
    op.dweight = memory.uniform({vocab, d});
    op.accumulate_loss = op.accumulate_weight = accumulate;
    const auto results = expect_agreement(card(), op, {.shifts = {0}});
    for (const auto& values : results) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= 0) continue;
        EXPECT_EQ(values.at("losses")[i], 0.0);
        for (std::size_t j = 0; j < static_cast<std::size_t>(d); ++j)
          EXPECT_EQ(values.at("dx")[i * static_cast<std::size_t>(d) + j], 0.0);
      }
    }
    op.dx = op.dweight = Tensor{};
    expect_agreement(card(), op, {.shifts = {0}});
  }
}

TEST_P(CudaLmLossTest, WithZLossAgreesWithTheCpu) {
  const auto [n, d, vocab, chunk] = GetParam();
  Memory memory;
  const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
  const double size = 3 / std::sqrt(static_cast<double>(d));
  LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}, -size, size), ids, chunk);
  op.z_loss = 0.05f;  // of a logsumexp of about 10: a gradient of twice the softmax
  expect_agreement(card(), op, {.shifts = {0}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLmLossTest,
                         ::testing::Values(LmLossCase{1, 1, 1, 1}, LmLossCase{1, 8, 267, 4}, LmLossCase{7, 5, 3, 2},
                                           LmLossCase{65, 24, 101, 32}, LmLossCase{128, 16, 257, 128},
                                           LmLossCase{40, 12, 1031, 13}, LmLossCase{200, 640, 267, 64},
                                           LmLossCase{70, 64, 32000, 32}, LmLossCase{9, 32, 151936, 4},
                                           LmLossCase{20, 16, 50257, 8}, LmLossCase{160, 128, 50257, 160}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaLmLossTest, ::testing::ValuesIn(random_cases<LmLossCase>(6, [](auto draw) {
                           const std::int64_t n = draw(200), d = 2 + draw(120), vocab = 2 + draw(3000);
                           return LmLossCase{n, d, vocab, draw(n)};
                         })));

constexpr std::int64_t kWorkspace = 4 << 20;  // what a library may want for products in eight bits
class CudaLmLossInFp8 : public OnCard<::testing::TestWithParam<LmLossCase>> {};

// Logits differ by the order of their sums, and now and then by one code of bf16 then: a dlogit in thousands falls on
// the other side of a step of e5m2. What is left is dx in bf16.
TEST_P(CudaLmLossInFp8, AgreesWithTheCpu) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
    const double size = 3 / std::sqrt(static_cast<double>(d));
    LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}, -size, size), ids, chunk);
    round_to_bf16(op.x), round_to_bf16(op.weight);
    *op.loss_sum.as<double>() = 3.5;
    op.dweight = memory.uniform({vocab, d});
    op.accumulate_loss = op.accumulate_weight = accumulate;
    op.stored = DType::bf16;
    op.z_loss = accumulate ? 0.01f : 0;
    op.fp8 = head_in_fp8(memory, op, *all_pools().back());
    op.workspace = memory.array(DType::u8, {kWorkspace});
    const auto results = expect_agreement(card(), op, {.bf16 = 5e-3, .types = {DType::bf16}, .shifts = {0}});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) continue;
      EXPECT_EQ(results[0].at("losses")[i], 0.0);
      for (std::size_t j = 0; j < static_cast<std::size_t>(d); ++j)
        ASSERT_EQ(results[0].at("dx")[i * static_cast<std::size_t>(d) + j], 0.0);
    }
  }
}

// A warp for a row, several; rows that fit into shared memory, that do not, and of which not even half does (260000).
// Chunks of whole tiles and not, one and several, the last one smaller.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaLmLossInFp8,
                         ::testing::Values(LmLossCase{16, 16, 16, 16}, LmLossCase{64, 48, 272, 64},
                                           LmLossCase{80, 32, 272, 32}, LmLossCase{304, 64, 3344, 128},
                                           LmLossCase{144, 640, 8208, 48}, LmLossCase{80, 64, 50304, 64},
                                           LmLossCase{48, 32, 151936, 32}, LmLossCase{32, 16, 260000, 32}));

class CudaLmLoss : public OnCard<> {};

// Quarters, whose products have the same sum in any order: both backends cast the same numbers but for the last bits of
// an exponential.
TEST_F(CudaLmLoss, DlogitsInFp8HaveTheBytesOfTheCpus) {
  constexpr std::int64_t kTokens = 144, kColumns = 32;
  for (const std::int64_t vocab : {std::int64_t{272}, std::int64_t{4112}, std::int64_t{50304}, std::int64_t{260000}}) {
    Memory memory;
    std::vector<std::int64_t> ids = random_integers(kTokens, vocab, 4);
    for (std::size_t i = 2; i < ids.size(); i += 5) ids[i] = -1;
    LmLoss<Tensor> op =
        head(memory, memory.uniform({kTokens, kColumns}), memory.uniform({vocab, kColumns}), ids, kTokens);
    for (const Tensor& t : {op.x, op.weight})
      for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = std::round(4 * t.f32()[i]) / 4;
    op.stored = DType::bf16;
    op.fp8 = head_in_fp8(memory, op, *all_pools().back());
    op.workspace = memory.array(DType::u8, {kWorkspace});
    const CardOp<LmLoss<Tensor>> on_card(card(), op, DType::bf16, 0);
    cpu::run(op, *all_pools().back());
    cuda::run(on_card.op(), card().launch());
    const auto dlogits = std::ranges::find(on_card.operands(), "dlogits", &NamedOperand::name);
    ASSERT_NE(dlogits, on_card.operands().end());
    const Bytes got = on_card.bytes(*dlogits);
    std::int64_t others = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::uint8_t want = op.fp8.dlogits.as<std::uint8_t>()[i];
      if (got[i] == want) continue;
      ++others;
      ASSERT_LE(std::abs(got[i] - want), 1) << "byte " << i << " of " << vocab;
    }
    EXPECT_LE(others, kTokens * vocab / 200) << vocab;
  }
}

// A batch that is all tail: nothing to learn, and nothing left over from before.
TEST_F(CudaLmLoss, WithoutATargetIsZero) {
  Memory memory;
  const LmLoss<Tensor> op =
      head(memory, memory.uniform({20, 16}), memory.uniform({267, 16}), std::vector<std::int64_t>(20, -1), 8);
  for (const auto& values : expect_agreement(card(), op, {.shifts = {0}})) {
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
  const auto results = expect_agreement(card(), op, {.f32 = 1e-3, .bf16 = kAnything, .shifts = {0}});
  for (const auto& values : results) {
    for (const auto& [name, all] : values) {
      for (double v : all) EXPECT_TRUE(std::isfinite(v)) << name;
    }
  }
}

}  // namespace
}  // namespace redline::ops
