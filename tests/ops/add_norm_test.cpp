// The norms of the residual stream against doubles: before a branch, with one and without, and after a branch.
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr double kEps = 1e-5;

struct Normed {
  Values y, rstd;
};
// RMSNorm of the rows of x, added to `base` where there is one.
Normed normed(const Values& x, const Values& weight, const Values& base = {}, bool one_plus = false) {
  Normed n{base, {}};
  n.y.resize(x.size());
  const std::size_t d = weight.size();
  for (std::size_t i = 0; i < x.size(); i += d) {
    double squares = 0;
    for (std::size_t j = 0; j < d; ++j) squares += x[i + j] * x[i + j];
    n.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + kEps));
    for (std::size_t j = 0; j < d; ++j) n.y[i + j] += x[i + j] * n.rstd.back() * (one_plus + weight[j]);
  }
  return n;
}

struct NormCase {
  std::int64_t n, d;
};
class NormTest : public ::testing::TestWithParam<NormCase> {};

TEST_P(NormTest, AddNormMatchesTheReferenceAndItsSlopes) {
  const auto [n, d] = GetParam();
  for (bool with_branch : {true, false}) {
    Memory memory;
    const Tensor absent, residual_in = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor branch = with_branch ? memory.uniform({n, d}) : absent;
    const Tensor residual_out = with_branch ? memory.zeros({n, d}) : absent;
    const Tensor y = memory.zeros({n, d}), rstd = memory.zeros({n});
    Values residual = values_of(residual_in), w = values_of(weight);
    if (with_branch) std::ranges::transform(residual, values_of(branch), residual.begin(), std::plus());
    run_checked(memory, AddNorm<Tensor>{residual_in, branch, weight, residual_out, y, rstd, static_cast<float>(kEps)});
    const Normed want = normed(residual, w);
    if (with_branch) expect_close("residual_out", residual_out, residual, 1e-6);
    expect_close("y", y, want.y, 3e-6);
    expect_close("rstd", rstd, want.rstd, 3e-6);

    for (bool accumulate : {false, true}) {
      const Tensor dy = memory.uniform({n, d}), dresidual = memory.uniform({n, d}), dweight = memory.uniform({d});
      const Values base_residual = accumulate ? values_of(dresidual) : Values();
      const Values base_weight = accumulate ? values_of(dweight) : Values(), upstream = values_of(dy);
      run_checked(memory, AddNormGrad<Tensor>{dy, with_branch ? residual_out : residual_in, weight, rstd, dresidual,
                                              dweight, memory.zeros({kRowGroups, d}), accumulate, accumulate});
      const auto loss = [&] { return dot(normed(residual, w).y, upstream); };
      expect_gradient("dresidual", dresidual, residual, loss, 3e-5, base_residual);
      expect_gradient("dweight", dweight, w, loss, 3e-5, base_weight);
    }
  }
}

// With one_plus both norms, and their gradients, are those with weights that are larger by one.
TEST_P(NormTest, OnePlusIsAWeightLargerByOne) {
  const auto [n, d] = GetParam();
  Memory memory;
  const float eps = static_cast<float>(kEps);
  const Tensor absent, x = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, -0.5, 0.5);
  const Tensor residual = memory.uniform({n, d}), y = memory.zeros({n, d}), out = memory.zeros({n, d});
  const Tensor rstd = memory.zeros({n}), dy = memory.uniform({n, d});
  Values in = values_of(x), w = values_of(weight);
  run_checked(memory, AddNorm<Tensor>{x, absent, weight, absent, y, rstd, eps, {}, true});
  expect_close("y", y, normed(in, w, {}, true).y, 3e-6);
  run_checked(memory, NormAdd<Tensor>{residual, x, weight, out, rstd, eps, true});
  expect_close("residual_out", out, normed(in, w, values_of(residual), true).y, 3e-6);
  const Tensor dx = memory.zeros({n, d}), dweight = memory.zeros({d});
  run_checked(memory, AddNormGrad<Tensor>{
                          dy, x, weight, rstd, dx, dweight, memory.zeros({kRowGroups, d}), false, false, {}, true});
  const Values upstream = values_of(dy);
  const auto loss = [&] { return dot(normed(in, w, {}, true).y, upstream); };
  expect_gradient("dx", dx, in, loss, 5e-5);
  expect_gradient("dweight", dweight, w, loss, 5e-5);
}

// The gradient of a norm after a branch is AddNormGrad's.
TEST_P(NormTest, NormAddMatchesTheReferenceAndItsSlopes) {
  const auto [n, d] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    const Tensor residual = memory.uniform({n, d}, -2, 2), branch = memory.uniform({n, d});
    const Tensor weight = memory.uniform({d}, 0.5, 1.5), out = memory.zeros({n, d}), rstd = memory.zeros({n});
    Values in = values_of(residual), b = values_of(branch), w = values_of(weight);
    run_checked(memory, NormAdd<Tensor>{residual, branch, weight, out, rstd, static_cast<float>(kEps)});
    const Normed want = normed(b, w, in);
    expect_close("residual_out", out, want.y, 3e-6);
    expect_close("rstd", rstd, want.rstd, 3e-6);

    const Tensor dout = memory.uniform({n, d}), dbranch = memory.uniform({n, d}), dweight = memory.uniform({d});
    const Values base_weight = accumulate ? values_of(dweight) : Values(), upstream = values_of(dout);
    run_checked(memory, AddNormGrad<Tensor>{dout, branch, weight, rstd, dbranch, dweight, memory.zeros({kRowGroups, d}),
                                            false, accumulate});
    const auto loss = [&] { return dot(normed(b, w, in).y, upstream); };
    expect_gradient("dbranch", dbranch, b, loss, 5e-5);
    expect_gradient("dweight", dweight, w, loss, 5e-5, base_weight);
    expect_gradient("dresidual", dout, in, loss, 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest,
                         ::testing::Values(NormCase{1, 1}, NormCase{1, 64}, NormCase{3, 7}, NormCase{33, 50},
                                           NormCase{64, 256}, NormCase{100, 129}));

}  // namespace
}  // namespace redline::ops
