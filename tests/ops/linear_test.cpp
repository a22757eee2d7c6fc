// Matrix products at shapes around the edges of tiles, transposed or not, and the three products of a linear layer.
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using cpu::Transpose;
using namespace redline::testing;

struct LinearCase {
  std::int64_t n, k, m;
};
class LinearTest : public ::testing::TestWithParam<LinearCase> {};

TEST_P(LinearTest, MatchesDoubles) {
  const auto [n, k, m] = GetParam();
  Memory memory;
  const Tensor x = memory.uniform({n, k}), weight = memory.uniform({m, k}), dy = memory.uniform({n, m});
  const Tensor y = memory.zeros({n, m}), dx = memory.zeros({n, k}), dweight = memory.uniform({m, k});
  run_checked(memory, Linear<Tensor>{x, weight, y});
  expect_close("y", y, product_of_doubles(values_of(x), false, values_of(weight), true, n, m, k), 1e-5);
  run_checked(memory, LinearInputGrad<Tensor>{dy, weight, dx});
  expect_close("dx", dx, product_of_doubles(values_of(dy), false, values_of(weight), false, n, k, m), 1e-5);
  for (bool accumulate : {false, true}) {
    const Values base = accumulate ? values_of(dweight) : Values();
    run_checked(memory, LinearWeightGrad<Tensor>{x, dy, dweight, accumulate});
    expect_close("dweight", dweight, product_of_doubles(values_of(dy), true, values_of(x), false, m, k, n), 1e-5, base);
  }
}

TEST_P(LinearTest, ABiasIsAddedToEveryRowAndItsGradientIsTheirSum) {
  const auto [n, k, m] = GetParam();
  Memory memory;
  const Tensor x = memory.uniform({n, k}), weight = memory.uniform({m, k}), bias = memory.uniform({m});
  const Tensor y = memory.zeros({n, m}), dy = memory.uniform({n, m}), dbias = memory.uniform({m});
  run_checked(memory, Linear<Tensor>{x, weight, y, {}, {}, bias});
  Values want = product_of_doubles(values_of(x), false, values_of(weight), true, n, m, k);
  const Values added = values_of(bias);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] += added[i % added.size()];
  expect_close("y", y, want, 1e-5);
  Values sums(static_cast<std::size_t>(m));
  const Values rows = values_of(dy);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i % sums.size()] += rows[i];
  for (const bool accumulate : {false, true}) {
    const Values base = accumulate ? values_of(dbias) : Values();
    run_checked(memory, BiasGrad<Tensor>{dy, dbias, accumulate});
    expect_close("dbias", dbias, sums, 1e-5, base);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearTest,
                         ::testing::Values(LinearCase{1, 1, 1}, LinearCase{1, 64, 267}, LinearCase{5, 3, 7},
                                           LinearCase{129, 80, 33}, LinearCase{513, 256, 267},
                                           LinearCase{700, 311, 530}));

// Rows of one group and of many, groups without rows, and rows without a group, against doubles row by row.
TEST(GroupedLinear, MatchesDoubles) {
  constexpr std::int64_t n = 70, k = 33, m = 21;
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{0, n}, {0, 0, 0}, {0, 9, 9, 50, n}, {0, 0, 1, 40, 64, 64}}) {
    const std::int64_t groups = std::ssize(offsets) - 1;
    Memory memory;
    const Tensor x = memory.uniform({n, k}), dy = memory.uniform({n, m}), weight = memory.uniform({groups, m, k});
    const Tensor at = memory.integers(offsets), y = memory.zeros({n, m});
    Values want_y(n * m), want_dx(n * k), want_dweight(static_cast<std::size_t>(groups * m * k));
    const Values xs = values_of(x), dys = values_of(dy), ws = values_of(weight);
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t i = offsets[static_cast<std::size_t>(g)]; i < offsets[static_cast<std::size_t>(g) + 1]; ++i)
        for (std::int64_t row = 0; row < m; ++row)
          for (std::int64_t column = 0; column < k; ++column) {
            const auto w = static_cast<std::size_t>((g * m + row) * k + column);
            const auto in = static_cast<std::size_t>(i * k + column), out = static_cast<std::size_t>(i * m + row);
            want_y[out] += xs[in] * ws[w];
            want_dx[in] += dys[out] * ws[w];
            want_dweight[w] += dys[out] * xs[in];
          }
    run_checked(memory, ops::GroupedLinear<Tensor>{x, weight, at, y});
    expect_close("y", y, want_y, 1e-5);
    for (const bool accumulate : {false, true}) {
      const Tensor dx = memory.uniform({n, k}), dweight = memory.uniform({groups, m, k});
      const Values dx_base = accumulate ? values_of(dx) : Values();
      const Values dweight_base = accumulate ? values_of(dweight) : Values();
      run_checked(memory, GroupedLinearInputGrad<Tensor>{dy, weight, at, dx, accumulate});
      expect_close("dx", dx, want_dx, 1e-5, dx_base);
      run_checked(memory, GroupedLinearWeightGrad<Tensor>{x, dy, at, dweight, accumulate});
      expect_close("dweight", dweight, want_dweight, 1e-5, dweight_base);
    }
  }
}

TEST(GroupedLinear, OffsetsThatAreNoneAreRefused) {
  for (const std::vector<std::int64_t>& offsets : {std::vector<std::int64_t>{1, 5}, {0, 4, 3}, {0, 6}}) {
    Memory memory;
    const Tensor x = memory.uniform({5, 3}), weight = memory.uniform({std::ssize(offsets) - 1, 2, 3});
    const ops::GroupedLinear<Tensor> op{x, weight, memory.integers(offsets), memory.zeros({5, 2})};
    EXPECT_THROW(cpu::run(op, *all_pools()[0]), MachineError);
  }
}

TEST(Gemm, TilesOfAnyShapeKeepToTheirMatrix) {
  const Random random(7, 7);
  for (std::uint64_t i = 0; i < 24; ++i) {
    const auto extent = [&](std::uint64_t which, std::uint64_t limit) {
      return static_cast<std::int64_t>(1 + random.below(8 * i + which, limit));
    };
    const std::int64_t m = extent(0, 900), n = extent(1, 900), k = extent(2, i % 2 ? 20 : 400), gap = extent(3, 5);
    const auto ta = i % 3 == 0 ? Transpose::yes : Transpose::no, tb = i % 4 < 2 ? Transpose::yes : Transpose::no;
    Memory memory;
    const Tensor a = memory.uniform({m, k}), b = memory.uniform({k, n}), c = memory.uniform({m, n + gap});
    const Values start = values_of(c), want = product_of_doubles(values_of(a), ta == Transpose::yes, values_of(b),
                                                                 tb == Transpose::yes, m, n, k);
    cpu::gemm({.ta = ta,
               .tb = tb,
               .m = m,
               .n = n,
               .k = k,
               .a = a.f32(),
               .lda = ta == Transpose::yes ? m : k,
               .b = b.f32(),
               .ldb = tb == Transpose::yes ? k : n,
               .c = c.f32(),
               .ldc = n + gap,
               .alpha = 0.5f,
               .beta = 2.0f},
              *all_pools()[1]);
    Values expected = start;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t j = 0; j < n; ++j) {
        double& e = expected[static_cast<std::size_t>(r * (n + gap) + j)];
        e = 2 * e + 0.5 * want[static_cast<std::size_t>(r * n + j)];
      }
    }
    expect_close("c", c, expected, 1e-5);
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t j = n; j < n + gap; ++j) {
        const std::int64_t at = r * (n + gap) + j;
        ASSERT_EQ(static_cast<double>(c.f32()[at]), start[static_cast<std::size_t>(at)]) << "beyond column " << n;
      }
    }
    EXPECT_TRUE(memory.guards_whole());
  }
}

}  // namespace
}  // namespace redline::ops
