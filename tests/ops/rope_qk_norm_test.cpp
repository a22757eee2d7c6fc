// Rotary embedding without QK-norm, with one over each head and with one over each projection, q and k only, against
// doubles.
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr double kRopeEps = 1e-6;

struct Inputs {
  HeadLayout layout;
  std::vector<std::int64_t> positions;
  Values qkv, q_norm, k_norm, table;  // norms empty: none
  NormOver over;
  bool one_plus = false;
};

void normalise(double* x, const Values& weight, bool one_plus) {
  double squares = 0;
  for (std::size_t j = 0; j < weight.size(); ++j) squares += x[j] * x[j];
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + kRopeEps);
  for (std::size_t j = 0; j < weight.size(); ++j) x[j] *= rstd * (one_plus + weight[j]);
}

Values reference(const Inputs& in) {
  const auto hd = static_cast<std::size_t>(in.layout.head_dim), width = static_cast<std::size_t>(in.layout.qkv_width());
  const auto heads = static_cast<std::size_t>(in.layout.heads);
  Values out = in.qkv;
  for (std::size_t i = 0; i < in.positions.size(); ++i) {
    const double* angles = in.table.data() + static_cast<std::size_t>(in.positions[i]) * hd;
    if (in.over == NormOver::projection) {
      normalise(out.data() + i * width, in.q_norm, in.one_plus);
      normalise(out.data() + i * width + heads * hd, in.k_norm, in.one_plus);
    }
    for (std::size_t h = 0; h < static_cast<std::size_t>(in.layout.qk_heads()); ++h) {
      double* x = out.data() + i * width + h * hd;
      const Values& norm = h < heads ? in.q_norm : in.k_norm;
      if (in.over == NormOver::head && !norm.empty()) normalise(x, norm, in.one_plus);
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
struct Norm {
  bool present;
  NormOver over;
  bool one_plus;
};
constexpr Norm kNorms[] = {{false, NormOver::head, false},
                           {true, NormOver::head, false},
                           {true, NormOver::projection, false},
                           {true, NormOver::head, true}};
class RopeQkNormTest : public ::testing::TestWithParam<RopeCase> {};

TEST_P(RopeQkNormTest, MatchesTheReferenceAndItsSlopes) {
  const auto& [n, l] = GetParam();
  constexpr std::int64_t kPositions = 40;
  for (const auto& [norm, over, one_plus] : kNorms) {
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
      const bool whole = over == NormOver::projection;
      const std::int64_t norms = norms_of(l, over);
      const std::int64_t q_width = (whole ? l.heads : 1) * l.head_dim, k_width = (whole ? l.kv_heads : 1) * l.head_dim;
      const auto weight = [&](std::int64_t width) { return norm ? memory.uniform({width}, 0.5, 1.5) : absent; };
      const Tensor q_norm = weight(q_width), k_norm = weight(k_width);
      const Tensor raw = norm ? memory.zeros({n, l.qk_heads() * l.head_dim}) : absent;
      const Tensor rstd = norm ? memory.zeros({n, norms}) : absent;
      Inputs in{l, random_integers(n, kPositions, 8), values_of(qkv), {}, {}, values_of(table), over, one_plus};
      if (norm) in.q_norm = values_of(q_norm), in.k_norm = values_of(k_norm);
      const Tensor positions = memory.integers(in.positions);
      RopeQkNorm<Tensor> op{qkv,  q_norm,  k_norm, positions, table, raw, rstd, l, static_cast<float>(kRopeEps),
                            over, one_plus};
      run_checked(memory, op);
      expect_close("qkv", qkv, reference(in), 5e-6);
      const Values rotated = values_of(qkv);

      // Without a backward nothing is kept, and the bits are the same.
      for (std::int64_t i = 0; i < qkv.elements(); ++i)
        qkv.f32()[i] = static_cast<float>(in.qkv[static_cast<std::size_t>(i)]);
      op.raw = op.rstd = absent;
      run_checked(memory, op);
      EXPECT_EQ(values_of(qkv), rotated);

      const Tensor dqkv = memory.uniform({n, l.qkv_width()});
      const auto gradient = [&](std::int64_t width) { return norm ? memory.uniform({width}) : absent; };
      const Tensor dq_norm = gradient(q_width), dk_norm = gradient(k_width);
      const Values upstream = values_of(dqkv);
      const Values base_q = norm && accumulate ? values_of(dq_norm) : Values();
      const Values base_k = norm && accumulate ? values_of(dk_norm) : Values();
      run_checked(memory, RopeQkNormGrad<Tensor>{dqkv,
                                                 q_norm,
                                                 k_norm,
                                                 positions,
                                                 table,
                                                 raw,
                                                 rstd,
                                                 dq_norm,
                                                 dk_norm,
                                                 norm ? memory.zeros({kRowGroups, q_width + k_width}) : absent,
                                                 l,
                                                 accumulate,
                                                 over,
                                                 {},
                                                 one_plus});
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
