// Head and cross entropy: loss alone and with gradients, in chunks that do and do not divide the rows.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

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

double sum_of(const Values& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum;
}

struct LmLossCase {
  std::int64_t n, d, vocab, chunk;
};
class LmLossTest : public ::testing::TestWithParam<LmLossCase> {};

TEST_P(LmLossTest, MatchesTheReferenceAndItsSlopes) {
  const auto [n, d, vocab, chunk] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    std::vector<std::int64_t> ids = random_integers(n, vocab, 4);
    for (std::size_t i = 2; i < ids.size(); i += 5) ids[i] = i % 2 ? -1 : -100;
    const Tensor x = memory.uniform({n, d}), weight = memory.uniform({vocab, d}), targets = memory.integers(ids);
    const Tensor losses = memory.zeros({n}), loss_sum = memory.doubles(1), logits = memory.zeros({chunk, vocab});
    const Tensor dx = memory.zeros({n, d}), dweight = memory.uniform({vocab, d}), absent;
    *loss_sum.as<double>() = 3.5;
    Values in = values_of(x), w = values_of(weight);
    const Values base_weight = accumulate ? values_of(dweight) : Values();
    const auto slopes_of = [&, width = static_cast<std::size_t>(d)] { return reference(in, w, ids, width); };
    LmLoss<Tensor> op{x, weight, targets, losses, loss_sum, logits, dx, dweight, accumulate, accumulate};
    run_checked(memory, op, kRun);
    const Values want = slopes_of();
    expect_close("losses", losses, want, 2e-6);
    const double total = sum_of(want) + (accumulate ? 3.5 : 0);
    EXPECT_NEAR(*loss_sum.as<double>(), total, 2e-6 * (1 + std::abs(total)));
    const auto loss = [&] { return sum_of(slopes_of()); };
    expect_gradient("dx", dx, in, loss, 5e-5);
    expect_gradient("dweight", dweight, w, loss, 5e-5, base_weight);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) continue;
      EXPECT_EQ(losses.f32()[i], 0.0f);
      for (std::int64_t j = 0; j < d; ++j) EXPECT_EQ(dx.f32()[static_cast<std::int64_t>(i) * d + j], 0.0f);
    }

    const Values trained = values_of(losses);
    op.dx = op.dweight = absent;
    run_checked(memory, op, kRun);
    EXPECT_EQ(values_of(losses), trained) << "the loss alone";
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
  run_checked(memory, op, kRun);
  for (const Tensor& t : {losses, sum, dx, dweight}) {
    for (double v : values_of(t)) EXPECT_TRUE(std::isfinite(v));
  }
}

}  // namespace
}  // namespace redline::ops
