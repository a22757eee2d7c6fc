// RMSNorm of a branch added to the residual stream, against doubles; its gradient is AddNormGrad's.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr double kEps = 1e-5;

struct Reference {
  Values out, rstd;
};
Reference reference(const Values& residual, const Values& branch, const Values& weight) {
  Reference r{residual, {}};
  const std::size_t d = weight.size();
  for (std::size_t i = 0; i < branch.size(); i += d) {
    double squares = 0;
    for (std::size_t j = 0; j < d; ++j) squares += branch[i + j] * branch[i + j];
    r.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + kEps));
    for (std::size_t j = 0; j < d; ++j) r.out[i + j] += branch[i + j] * r.rstd.back() * weight[j];
  }
  return r;
}

struct NormAddCase {
  std::int64_t n, d;
};
class NormAddTest : public ::testing::TestWithParam<NormAddCase> {};

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

TEST_P(NormAddTest, MatchesTheReferenceAndItsSlopes) {
  const auto [n, d] = GetParam();
  for (bool accumulate : {false, true}) {
    Memory memory;
    const Tensor residual = memory.uniform({n, d}, -2, 2), branch = memory.uniform({n, d});
    const Tensor weight = memory.uniform({d}, 0.5, 1.5), out = memory.zeros({n, d}), rstd = memory.zeros({n});
    Values in = values_of(residual), b = values_of(branch), w = values_of(weight);
    run_checked(memory, NormAdd<Tensor>{residual, branch, weight, out, rstd, static_cast<float>(kEps)}, kRun);
    const Reference want = reference(in, b, w);
    expect_close("residual_out", out, want.out, 3e-6);
    expect_close("rstd", rstd, want.rstd, 3e-6);

    const Tensor dout = memory.uniform({n, d}), dbranch = memory.uniform({n, d}), dweight = memory.uniform({d});
    const Values base_weight = accumulate ? values_of(dweight) : Values(), upstream = values_of(dout);
    run_checked(memory,
                AddNormGrad<Tensor>{dout, branch, weight, rstd, dbranch, dweight, memory.zeros({kRowGroups, d}), false,
                                    accumulate},
                kRun);
    const auto loss = [&] { return dot(reference(in, b, w).out, upstream); };
    expect_gradient("dbranch", dbranch, b, loss, 5e-5);
    expect_gradient("dweight", dweight, w, loss, 5e-5, base_weight);
    expect_gradient("dresidual", dout, in, loss, 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormAddTest,
                         ::testing::Values(NormAddCase{1, 1}, NormAddCase{1, 64}, NormAddCase{3, 7},
                                           NormAddCase{33, 50}, NormAddCase{64, 256}, NormAddCase{100, 129}));

}  // namespace
}  // namespace redline::ops
