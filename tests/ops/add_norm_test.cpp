// Residual add and RMSNorm, with and without a branch, against doubles.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr double kEps = 1e-5;

struct Reference {
  Values residual, y, rstd;
};
Reference reference(const Values& residual_in, const Values& branch, const Values& weight) {
  Reference r{residual_in, residual_in, {}};
  for (std::size_t i = 0; i < branch.size(); ++i) r.residual[i] += branch[i];
  const std::size_t d = weight.size();
  for (std::size_t i = 0; i < residual_in.size(); i += d) {
    double squares = 0;
    for (std::size_t j = 0; j < d; ++j) squares += r.residual[i + j] * r.residual[i + j];
    r.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(d) + kEps));
    for (std::size_t j = 0; j < d; ++j) r.y[i + j] = r.residual[i + j] * r.rstd.back() * weight[j];
  }
  return r;
}

struct AddNormCase {
  std::int64_t n, d;
};
class AddNormTest : public ::testing::TestWithParam<AddNormCase> {};

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

TEST_P(AddNormTest, MatchesTheReferenceAndItsSlopes) {
  const auto [n, d] = GetParam();
  for (bool with_branch : {true, false}) {
    Memory memory;
    const Tensor absent, residual_in = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor branch = with_branch ? memory.uniform({n, d}) : absent;
    const Tensor residual_out = with_branch ? memory.zeros({n, d}) : absent;
    const Tensor y = memory.zeros({n, d}), rstd = memory.zeros({n});
    Values in = values_of(residual_in), b = with_branch ? values_of(branch) : Values(), w = values_of(weight);
    run_checked(memory, AddNorm<Tensor>{residual_in, branch, weight, residual_out, y, rstd, static_cast<float>(kEps)},
                kRun);
    const Reference want = reference(in, b, w);
    if (with_branch) expect_close("residual_out", residual_out, want.residual, 1e-6);
    expect_close("y", y, want.y, 3e-6);
    expect_close("rstd", rstd, want.rstd, 3e-6);

    for (bool accumulate : {false, true}) {
      const Tensor dy = memory.uniform({n, d}), dresidual = memory.uniform({n, d}), dweight = memory.uniform({d});
      const Values base_residual = accumulate ? values_of(dresidual) : Values();
      const Values base_weight = accumulate ? values_of(dweight) : Values(), upstream = values_of(dy);
      run_checked(memory,
                  AddNormGrad<Tensor>{dy, with_branch ? residual_out : residual_in, weight, rstd, dresidual, dweight,
                                      memory.zeros({kRowGroups, d}), accumulate, accumulate},
                  kRun);
      const auto loss = [&] { return dot(reference(in, b, w).y, upstream); };
      expect_gradient("dresidual", dresidual, in, loss, 3e-5, base_residual);
      expect_gradient("dweight", dweight, w, loss, 3e-5, base_weight);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AddNormTest,
                         ::testing::Values(AddNormCase{1, 1}, AddNormCase{1, 64}, AddNormCase{3, 7},
                                           AddNormCase{33, 50}, AddNormCase{64, 256}, AddNormCase{100, 129}));

}  // namespace
}  // namespace redline::ops
