// Rotary embedding with and without QK-norm, q and k only, against doubles.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr double kEps = 1e-6;
const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

struct Inputs {
  HeadLayout layout;
  std::vector<std::int64_t> positions;
  Values qkv, q_norm, k_norm, table;  // norms empty: none
};

Values reference(const Inputs& in) {
  const auto hd = static_cast<std::size_t>(in.layout.head_dim), width = static_cast<std::size_t>(in.layout.qkv_width());
  Values out = in.qkv;
  for (std::size_t i = 0; i < in.positions.size(); ++i) {
    const double* angles = in.table.data() + static_cast<std::size_t>(in.positions[i]) * hd;
    for (std::size_t h = 0; h < static_cast<std::size_t>(in.layout.qk_heads()); ++h) {
      double* x = out.data() + i * width + h * hd;
      const Values& norm = h < static_cast<std::size_t>(in.layout.heads) ? in.q_norm : in.k_norm;
      if (!norm.empty()) {
        double squares = 0;
        for (std::size_t j = 0; j < hd; ++j) squares += x[j] * x[j];
        const double rstd = 1 / std::sqrt(squares / static_cast<double>(hd) + kEps);
        for (std::size_t j = 0; j < hd; ++j) x[j] *= rstd * norm[j];
      }
      for (std::size_t j = 0; j < hd / 2; ++j) {
        const double a = x[j], b = x[j + hd / 2], c = angles[j], s = angles[j + hd / 2];
        x[j] = a * c - b * s;
        x[j + hd / 2] = b * c + a * s;
      }
    }
  }
  return out;
}

struct RopeCase {
  std::int64_t n;
  HeadLayout layout;
};
class RopeQkNormTest : public ::testing::TestWithParam<RopeCase> {};

TEST_P(RopeQkNormTest, MatchesTheReferenceAndItsSlopes) {
  const auto& [n, l] = GetParam();
  constexpr std::int64_t kPositions = 40;
  for (bool norm : {false, true}) {
    for (bool accumulate : {false, true}) {
      Memory memory;
      const Tensor absent, qkv = memory.uniform({n, l.qkv_width()}), table = memory.zeros({kPositions, l.head_dim});
      const std::int64_t half = l.head_dim / 2;
      for (std::int64_t p = 0; p < kPositions; ++p) {
        for (std::int64_t j = 0; j < half; ++j) {
          const double angle =
              static_cast<double>(p) * std::pow(100.0, -static_cast<double>(j) / static_cast<double>(half));
          table.f32()[p * l.head_dim + j] = static_cast<float>(std::cos(angle));
          table.f32()[p * l.head_dim + half + j] = static_cast<float>(std::sin(angle));
        }
      }
      const auto norm_weight = [&] { return norm ? memory.uniform({l.head_dim}, 0.5, 1.5) : absent; };
      const Tensor q_norm = norm_weight(), k_norm = norm_weight();
      const Tensor raw = norm ? memory.zeros({n, l.qk_heads() * l.head_dim}) : absent;
      const Tensor rstd = norm ? memory.zeros({n, l.qk_heads()}) : absent;
      Inputs in{l, random_integers(n, kPositions, 8), values_of(qkv), {}, {}, values_of(table)};
      if (norm) in.q_norm = values_of(q_norm), in.k_norm = values_of(k_norm);
      const Tensor positions = memory.integers(in.positions);
      RopeQkNorm<Tensor> op{qkv, q_norm, k_norm, positions, table, raw, rstd, l, static_cast<float>(kEps)};
      run_checked(memory, op, kRun);
      expect_close("qkv", qkv, reference(in), 5e-6);
      const Values rotated = values_of(qkv);

      // Without a backward nothing is kept, and the bits are the same.
      for (std::int64_t i = 0; i < qkv.elements(); ++i)
        qkv.f32()[i] = static_cast<float>(in.qkv[static_cast<std::size_t>(i)]);
      op.raw = op.rstd = absent;
      run_checked(memory, op, kRun);
      EXPECT_EQ(values_of(qkv), rotated);

      const Tensor dqkv = memory.uniform({n, l.qkv_width()});
      const auto gradient = [&] { return norm ? memory.uniform({l.head_dim}) : absent; };
      const Tensor dq_norm = gradient(), dk_norm = gradient();
      const Values upstream = values_of(dqkv);
      const Values base_q = norm && accumulate ? values_of(dq_norm) : Values();
      const Values base_k = norm && accumulate ? values_of(dk_norm) : Values();
      run_checked(memory,
                  RopeQkNormGrad<Tensor>{dqkv, q_norm, k_norm, positions, table, raw, rstd, dq_norm, dk_norm,
                                         norm ? memory.zeros({kRowGroups, 2 * l.head_dim}) : absent, l, accumulate},
                  kRun);
      const auto loss = [&] { return dot(reference(in), upstream); };
      expect_gradient("dqkv", dqkv, in.qkv, loss, 5e-5);
      if (norm) {
        expect_gradient("dq_norm", dq_norm, in.q_norm, loss, 5e-5, base_q);
        expect_gradient("dk_norm", dk_norm, in.k_norm, loss, 5e-5, base_k);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeQkNormTest,
                         ::testing::Values(RopeCase{1, {1, 1, 2}}, RopeCase{1, {3, 1, 16}}, RopeCase{37, {4, 4, 32}},
                                           RopeCase{70, {6, 2, 64}}, RopeCase{33, {2, 2, 80}},
                                           RopeCase{5, {3, 1, 128}}));

}  // namespace
}  // namespace redline::ops
