// Rotary embedding on the card without QK-norm, with one over each head and with one over each projection; v is not
// touched.
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

struct RopeCase {
  std::int64_t n;
  HeadLayout layout;
};
struct Norm {
  bool present;
  NormOver over;
};
constexpr Norm kNorms[] = {{false, NormOver::head}, {true, NormOver::head}, {true, NormOver::projection}};
class CudaRopeQkNormTest : public OnCard<::testing::TestWithParam<RopeCase>> {};

TEST_P(CudaRopeQkNormTest, AgreesWithTheCpu) {
  const auto& [n, l] = GetParam();
  constexpr std::int64_t kPositions = 40;
  for (const auto& [norm, over] : kNorms) {
    for (bool backward : {false, true}) {  // what is kept; whether the gradient of the norms adds
      Memory memory;
      const Tensor absent, table = memory.zeros({kPositions, l.head_dim});
      const Tensor positions = memory.integers(random_integers(n, kPositions, 8));
      const std::int64_t half = l.head_dim / 2;
      for (std::int64_t i = 0; i < kPositions * half; ++i) {
        const double angle = 0.37 * static_cast<double>(i);
        table.f32()[i / half * l.head_dim + i % half] = static_cast<float>(std::cos(angle));
        table.f32()[i / half * l.head_dim + half + i % half] = static_cast<float>(std::sin(angle));
      }
      const auto when = [&](bool present, const Shape& shape, double low, double high) {
        return present ? memory.uniform(shape, low, high) : absent;
      };
      const bool whole = over == NormOver::projection;
      const Shape of_raw{n, l.qk_heads() * l.head_dim}, of_rstd{n, norms_of(l, over)};
      const Shape of_q{(whole ? l.heads : 1) * l.head_dim}, of_k{(whole ? l.kv_heads : 1) * l.head_dim};
      const Tensor q_norm = when(norm, of_q, 0.5, 1.5), k_norm = when(norm, of_k, 0.5, 1.5);
      expect_agreement(card(),
                       RopeQkNorm<Tensor>{memory.uniform({n, l.qkv_width()}), q_norm, k_norm, positions, table,
                                          when(norm && backward, of_raw, 0, 1), when(norm && backward, of_rstd, 0, 1),
                                          l, 1e-6f, over},
                       kOnCpu, kOnCard);
      expect_agreement(card(),
                       RopeQkNormGrad<Tensor>{memory.uniform({n, l.qkv_width()}), q_norm, k_norm, positions, table,
                                              when(norm, of_raw, -1, 1), when(norm, of_rstd, 0.5, 2),
                                              when(norm, of_q, -1, 1), when(norm, of_k, -1, 1),
                                              when(norm, {kRowGroups, of_q[0] + of_k[0]}, 0, 1), l, backward, over},
                       kOnCpu, kOnCard);
    }
  }
}

// Among them: one token, and fewer than groups of rows; heads that do not fill a block, tokens that do not divide by
// those of a round, and more rounds than are read ahead (1420 of 16 + 9 heads of 128); heads of 16 lanes, and of 6 out
// of 8; more heads than a block takes at once (in vectors of bf16: 64 + 9 of 128 in two uneven passes with q and k in
// the second, 16 + 16 of 256 with q in one and k in the other).
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaRopeQkNormTest,
    ::testing::Values(RopeCase{1, {1, 1, 2}}, RopeCase{7, {3, 1, 10}}, RopeCase{9, {3, 1, 6}}, RopeCase{1, {4, 4, 64}},
                      RopeCase{33, {4, 2, 64}}, RopeCase{300, {12, 4, 64}}, RopeCase{513, {16, 8, 128}},
                      RopeCase{20, {2, 2, 96}}, RopeCase{300, {2, 1, 256}}, RopeCase{1, {16, 8, 128}},
                      RopeCase{263, {5, 2, 128}}, RopeCase{5000, {7, 1, 64}}, RopeCase{2900, {3, 3, 96}},
                      RopeCase{1420, {16, 9, 128}}, RopeCase{300, {40, 8, 128}}, RopeCase{550, {64, 9, 128}},
                      RopeCase{290, {16, 16, 256}}, RopeCase{270, {30, 1, 256}}, RopeCase{530, {9, 9, 10}}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaRopeQkNormTest, ::testing::ValuesIn(random_cases<RopeCase>(6, [](auto draw) {
                           const std::int64_t n = draw(600), kv_heads = draw(6), group = draw(5);
                           return RopeCase{n, {kv_heads * group, kv_heads, 2 * (3 + draw(90))}};
                         })));

}  // namespace
}  // namespace redline::ops
