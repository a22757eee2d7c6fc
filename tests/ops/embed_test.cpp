// Embedding and its gradient, with tokens that repeat.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using cpu::run;
using namespace redline::testing;

struct EmbedCase {
  std::int64_t n, vocab, d;
};

class EmbedTest : public ::testing::TestWithParam<EmbedCase> {};

TEST_P(EmbedTest, ScalesRowsBothWays) {
  const auto [n, vocab, d] = GetParam();
  Memory memory;
  const Tensor tokens = memory.integers(random_integers(n, vocab, 3)), weight = memory.uniform({vocab, d});
  const Tensor y = memory.zeros({n, d}), scaled = memory.zeros({n, d}), dy = memory.uniform({n, d});
  const Tensor dweight = memory.zeros({vocab, d}), scaled_dweight = memory.zeros({vocab, d});
  const auto times = [](Values values) {
    for (double& v : values) v *= 3.5;
    return values;
  };
  run_checked(memory, Embed<Tensor>{tokens, weight, y});
  run_checked(memory, Embed<Tensor>{tokens, weight, scaled, kNoPadding, 3.5f});
  expect_close("y", scaled, times(values_of(y)), 1e-6);
  EmbedGrad<Tensor> grad{tokens, dy, dweight, false};
  run_checked(memory, grad);
  grad.dweight = scaled_dweight;
  grad.scale = 3.5f;
  run_checked(memory, grad);
  expect_close("dweight", scaled_dweight, times(values_of(dweight)), 1e-5);
}

TEST_P(EmbedTest, CopiesRowsAndAddsThemBack) {
  const auto [n, vocab, d] = GetParam();
  const auto at = [d = d](std::int64_t row, std::int64_t column) { return static_cast<std::size_t>(row * d + column); };
  Memory memory;
  const std::vector<std::int64_t> ids = random_integers(n, vocab, 3);
  const Tensor tokens = memory.integers(ids), weight = memory.uniform({vocab, d}), y = memory.zeros({n, d});
  run_checked(memory, Embed<Tensor>{tokens, weight, y});
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < d; ++j)
      ASSERT_EQ(y.f32()[at(i, j)], weight.f32()[at(ids[static_cast<std::size_t>(i)], j)]);
  }

  for (bool accumulate : {false, true}) {
    const Tensor dy = memory.uniform({n, d}), dweight = memory.uniform({vocab, d});
    const Values base = accumulate ? values_of(dweight) : Values();
    Values want(static_cast<std::size_t>(vocab * d));
    const std::int64_t padding = accumulate ? vocab / 2 : kNoPadding;  // its row stays as it is
    for (std::int64_t i = 0; i < n; ++i) {
      if (ids[static_cast<std::size_t>(i)] == padding) continue;
      for (std::int64_t j = 0; j < d; ++j) {
        want[at(ids[static_cast<std::size_t>(i)], j)] += static_cast<double>(dy.f32()[at(i, j)]);
      }
    }
    run_checked(memory, EmbedGrad<Tensor>{tokens, dy, dweight, accumulate, static_cast<std::int32_t>(padding)});
    expect_close("dweight", dweight, want, 1e-5, base);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EmbedTest,
                         ::testing::Values(EmbedCase{1, 1, 1}, EmbedCase{1, 5, 7}, EmbedCase{300, 3, 65},
                                           EmbedCase{257, 267, 96}, EmbedCase{1000, 50, 200}));

}  // namespace
}  // namespace redline::ops
