// Head and cross entropy: loss alone and with gradients, in chunks that do and do not divide the rows; with what is
// kept between the products rounded, and with the gradients' operands in eight bits.
#include "base/small_floats.h"
#include "ops/cpu/kernels.h"
#include "ops/lm_head.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

Values reference(const Values& x, const Values& weight, const std::vector<std::int64_t>& targets, std::size_t d) {
  Values losses(targets.size());
  const std::size_t vocab = weight.size() / d;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    double sum = 0, at_target = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      double logit = 0;
      for (std::size_t j = 0; j < d; ++j) logit += x[i * d + j] * weight[v * d + j];
      sum += std::exp(logit);
      if (static_cast<std::int64_t>(v) == targets[i]) at_target = logit;
    }
    losses[i] = std::log(sum) - at_target;
  }
  return losses;
}

// Their logsumexp, of rows with a target.
Values logsumexps(const Values& x, const Values& weight, const std::vector<std::int64_t>& targets, std::size_t d) {
  std::vector<std::int64_t> first(targets.size(), 0);
  Values lse = reference(x, weight, first, d);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    for (std::size_t j = 0; j < d; ++j) lse[i] += x[i * d + j] * weight[j];
    if (targets[i] < 0) lse[i] = 0;
  }
  return lse;
}

double sum_of(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum;
}

class LmLossTest : public ::testing::TestWithParam<LmLossCase> {};

TEST_P(LmLossTest, MatchesTheReferenceAndItsSlopes) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
    LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}), ids, chunk);
    op.dweight = memory.uniform({vocab, d});
    op.accumulate_loss = op.accumulate_weight = accumulate;
    *op.loss_sum.as<double>() = 3.5;
    Values in = values_of(op.x), w = values_of(op.weight);
    const Values base_weight = accumulate ? values_of(op.dweight) : Values();
    const auto slopes_of = [&, width = static_cast<std::size_t>(d)] { return reference(in, w, ids, width); };
    run_checked(memory, op);
    const Values want = slopes_of();
    expect_close("losses", op.losses, want, 2e-6);
    const double total = sum_of(want) + (accumulate ? 3.5 : 0);
    EXPECT_NEAR(*op.loss_sum.as<double>(), total, 2e-6 * (1 + std::abs(total)));
    const auto loss = [&] { return sum_of(slopes_of()); };
    expect_gradient("dx", op.dx, in, loss, 5e-5);
    expect_gradient("dweight", op.dweight, w, loss, 5e-5, base_weight);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) continue;
      EXPECT_EQ(op.losses.f32()[i], 0.0f);
      for (std::int64_t j = 0; j < d; ++j) EXPECT_EQ(op.dx.f32()[static_cast<std::int64_t>(i) * d + j], 0.0f);
    }

    const Values trained = values_of(op.losses);
    op.dx = op.dweight = Tensor{};
    run_checked(memory, op);
    EXPECT_EQ(values_of(op.losses), trained) << "the loss alone";
  }
}

// The gradient is that of the loss with the penalty, the loss is the one without it.
TEST_P(LmLossTest, WithZLossTheGradientAloneHasIt) {
  const auto [n, d, vocab, chunk] = GetParam();
  constexpr double kZ = 0.125;
  Memory memory;
  const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
  LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}), ids, chunk);
  Values in = values_of(op.x), w = values_of(op.weight);
  run_checked(memory, op);
  const Values plain = values_of(op.losses), gradient = values_of(op.dx);
  const double plain_sum = *op.loss_sum.as<double>();
  op.z_loss = static_cast<float>(kZ);
  run_checked(memory, op);
  EXPECT_EQ(values_of(op.losses), plain);
  EXPECT_EQ(*op.loss_sum.as<double>(), plain_sum);
  if (n > 1) {
    EXPECT_NE(values_of(op.dx), gradient);
  }
  const auto trained = [&, width = static_cast<std::size_t>(d)] {
    double sum = sum_of(reference(in, w, ids, width));
    for (const double lse : logsumexps(in, w, ids, width)) sum += kZ * lse * lse;
    return sum;
  };
  expect_gradient("dx", op.dx, in, trained, 5e-5);
  expect_gradient("dweight", op.dweight, w, trained, 5e-5);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::int64_t j = 0; ids[i] < 0 && j < d; ++j)
      EXPECT_EQ(op.dx.f32()[static_cast<std::int64_t>(i) * d + j], 0.0f) << "no target, no penalty";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LmLossTest,
                         ::testing::Values(LmLossCase{1, 1, 1, 1}, LmLossCase{1, 8, 267, 4}, LmLossCase{7, 5, 3, 2},
                                           LmLossCase{65, 24, 101, 32}, LmLossCase{128, 16, 257, 128},
                                           LmLossCase{40, 12, 1031, 13}));

TEST(LmLoss, HoldsWithLargeLogits) {
  Memory memory;
  const Tensor x = memory.uniform({4, 8}, 30, 40), weight = memory.uniform({50, 8}, -9, 9), losses = memory.zeros({4});
  const Tensor sum = memory.doubles(1), dx = memory.zeros({4, 8}), dweight = memory.zeros({50, 8});
  LmLoss<Tensor> op{x,     weight, memory.integers({1, 2, 3, 4}), losses, sum, memory.zeros({4, 50}), dx, dweight,
                    false, false};
  run_checked(memory, op);
  for (const Tensor& t : {losses, sum, dx, dweight}) {
    for (double v : values_of(t)) EXPECT_TRUE(std::isfinite(v));
  }
}

float rounded(float x) { return f32_from_bf16(bf16_from_f32(x)); }

// Where a card keeps logits and dlogits in bf16, so does the truth for it.
TEST(LmLoss, RoundsWhatIsStoredInBf16) {
  constexpr std::int64_t kTokens = 24, kWidth = 16, kVocab = 101;
  for (const bool gradient : {false, true}) {
    Memory memory;
    const Tensor x = memory.uniform({kTokens, kWidth}), weight = memory.uniform({kVocab, kWidth});
    const std::vector<std::int64_t> ids = random_integers(kTokens, kVocab, 4);
    const Tensor losses = memory.zeros({kTokens}), sum = memory.doubles(1), logits = memory.zeros({kTokens, kVocab});
    LmLoss<Tensor> op{x, weight, memory.integers(ids), losses, sum, logits, {}, {}, false, false};
    op.stored = DType::bf16;
    if (gradient) op.dx = memory.zeros(x.shape), op.dweight = memory.zeros(weight.shape);
    run_checked(memory, op);
    double error = 0;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      double exponentials = 0, dlogits = 0;
      for (std::int64_t v = 0; v < kVocab; ++v) {
        const float stored = logits.f32()[i * kVocab + v];
        EXPECT_EQ(stored, rounded(stored));
        exponentials += std::exp(static_cast<double>(stored));
        dlogits += static_cast<double>(stored);
      }
      if (gradient) {
        EXPECT_NEAR(dlogits, 0, 0x1p-8) << "they add up to nothing, but for their rounding";
        error = std::max(error, std::abs(dlogits));
        continue;
      }
      const auto target = static_cast<std::int64_t>(ids[static_cast<std::size_t>(i)]);
      EXPECT_NEAR(losses.f32()[i], std::log(exponentials) - logits.f32()[i * kVocab + target], 2e-6);
    }
    EXPECT_EQ(error > 1e-5, gradient);
  }
}

class LmLossInFp8 : public ::testing::TestWithParam<LmLossCase> {};

// The gradient is that of fp32 but for the error of one cast of each operand, which has no direction.
TEST_P(LmLossInFp8, GradientsAreThoseOfFp32ButForTheCasts) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (const bool accumulate : {false, true}) {
    Memory memory;
    const std::vector<std::int64_t> ids = targets_with_gaps(n, vocab);
    const double size = 4 / std::sqrt(static_cast<double>(d));
    LmLoss<Tensor> op = head(memory, memory.uniform({n, d}), memory.uniform({vocab, d}, -size, size), ids, chunk);
    op.accumulate_loss = op.accumulate_weight = accumulate;
    op.z_loss = accumulate ? 0.01f : 0;
    round_to_bf16(op.x), round_to_bf16(op.weight);
    const Values start = values_of(memory.uniform({vocab, d}));
    const auto restart = [&] {
      std::ranges::transform(start, op.dweight.f32(), [](double v) { return static_cast<float>(v); });
    };
    restart();
    run_checked(memory, op);
    const Values want_dx = values_of(op.dx), want_dweight = values_of(op.dweight), want_losses = values_of(op.losses);

    op.fp8 = head_in_fp8(memory, op, *all_pools().back());
    restart();
    run_checked(memory, op);
    EXPECT_EQ(values_of(op.losses), want_losses) << "logits are what they were";
    const auto expect_cast_error = [&](const char* what, const Tensor& got, const Values& want, const Values& base) {
      double squares = 0, errors = 0, sum = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double made = want[i] - (base.empty() ? 0 : base[i]), error = static_cast<double>(got.f32()[i]) - want[i];
        squares += made * made, errors += error * error, sum += error;
      }
      const auto count = static_cast<double>(want.size());
      EXPECT_LT(std::sqrt(errors), 0.06 * std::sqrt(squares)) << what;
      EXPECT_GT(std::sqrt(errors), 0.005 * std::sqrt(squares)) << what << ": was it cast at all?";
      EXPECT_LT(std::abs(sum / count),
                4 * std::sqrt(errors / count) / std::sqrt(count) + 1e-3 * std::sqrt(squares / count))
          << what;
    };
    expect_cast_error("dx", op.dx, want_dx, {});
    expect_cast_error("dweight", op.dweight, want_dweight, accumulate ? start : Values());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::int64_t j = 0; ids[i] < 0 && j < d; ++j)
        ASSERT_EQ(op.dx.f32()[static_cast<std::int64_t>(i) * d + j], 0.0f) << "no target, no gradient";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LmLossInFp8,
                         ::testing::Values(LmLossCase{16, 16, 16, 16}, LmLossCase{64, 48, 272, 64},
                                           LmLossCase{80, 32, 272, 32}, LmLossCase{128, 64, 1024, 48},
                                           LmLossCase{32, 32, 4112, 16}));

// The casts are those of quantize, by columns of the last chunk.
TEST(LmLoss, DlogitsInFp8AreTheCastsOfDlogits) {
  constexpr std::int64_t kTokens = 32, kWidth = 16, kVocab = 48;
  Memory memory;
  std::vector<std::int64_t> ids = random_integers(kTokens, kVocab, 4);
  ids[3] = -1;
  LmLoss<Tensor> op = head(memory, memory.uniform({kTokens, kWidth}), memory.uniform({kVocab, kWidth}), ids, kTokens);
  op.stored = DType::bf16;
  run_checked(memory, op);
  const Tensor dlogits = memory.zeros({kTokens, kVocab}), columns = memory.array(DType::e5m2, {kVocab, kTokens});
  std::memcpy(dlogits.data, op.logits.data, static_cast<std::size_t>(dlogits.bytes()));
  op.fp8 = head_in_fp8(memory, op, *all_pools().back());
  cpu::run(Quantize<Tensor>{dlogits, {.columns = columns, .scale = op.fp8.dlogits_scale}}, *all_pools().back());
  run_checked(memory, op);
  EXPECT_EQ(std::memcmp(op.fp8.dlogits.data, columns.data, static_cast<std::size_t>(columns.bytes())), 0);
}

}  // namespace
}  // namespace redline::ops
