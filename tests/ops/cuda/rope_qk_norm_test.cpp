// Rotary embedding on the card without QK-norm, with one over each head and with one over each projection; v is not
// touched. Gradients cast to eight bits, v among them.
#include "ops/cuda/fp8_check.h"

namespace redline::ops {
namespace {

struct RopeCase {
  std::int64_t n;
  HeadLayout layout;
};
struct Norm {
  bool present;
  NormOver over;
  bool one_plus = false;
};
constexpr Norm kNorms[] = {
    {false, NormOver::head}, {true, NormOver::head}, {true, NormOver::head, true}, {true, NormOver::projection}};
class CudaRopeQkNormTest : public OnCard<::testing::TestWithParam<RopeCase>> {};

constexpr std::int64_t kPositions = 40;

// Operands that a case and a norm share.
struct RopeOperands {
  RopeOperands(Memory& m, const RopeCase& c, const Norm& with) : memory(m), n(c.n), l(c.layout), norm(with) {
    table = memory.zeros({kPositions, l.head_dim});
    positions = memory.integers(random_integers(n, kPositions, 8));
    const std::int64_t half = l.head_dim / 2;
    for (std::int64_t i = 0; i < kPositions * half; ++i) {
      const double angle = 0.37 * static_cast<double>(i);
      table.f32()[i / half * l.head_dim + i % half] = static_cast<float>(std::cos(angle));
      table.f32()[i / half * l.head_dim + half + i % half] = static_cast<float>(std::sin(angle));
    }
    const bool whole = norm.over == NormOver::projection;
    of_q = {(whole ? l.heads : 1) * l.head_dim}, of_k = {(whole ? l.kv_heads : 1) * l.head_dim};
    of_raw = {n, l.qk_heads() * l.head_dim}, of_rstd = {n, norms_of(l, norm.over)};
    q_norm = when(norm.present, of_q, 0.5, 1.5), k_norm = when(norm.present, of_k, 0.5, 1.5);
  }
  Tensor when(bool present, const Shape& shape, double low, double high) const {
    return present ? memory.uniform(shape, low, high) : Tensor{};
  }
  RopeQkNormGrad<Tensor> gradient(bool accumulate) const {
    return {memory.uniform({n, l.qkv_width()}),
            q_norm,
            k_norm,
            positions,
            table,
            when(norm.present, of_raw, -1, 1),
            when(norm.present, of_rstd, 0.5, 2),
            when(norm.present, of_q, -1, 1),
            when(norm.present, of_k, -1, 1),
            when(norm.present, {kRowGroups, of_q[0] + of_k[0]}, 0, 1),
            l,
            accumulate,
            norm.over,
            {},
            norm.one_plus};
  }

  Memory& memory;
  std::int64_t n;
  HeadLayout l;
  Norm norm;
  Tensor table, positions, q_norm, k_norm;
  Shape of_q, of_k, of_raw, of_rstd;
};

TEST_P(CudaRopeQkNormTest, AgreesWithTheCpu) {
  const auto& [n, l] = GetParam();
  for (const Norm& norm : kNorms) {
    for (bool backward : {false, true}) {  // what is kept; whether the gradient of the norms adds
      Memory memory;
      const RopeOperands o(memory, GetParam(), norm);
      const bool kept = norm.present && backward;
      expect_agreement(card(), RopeQkNorm<Tensor>{memory.uniform({n, l.qkv_width()}), o.q_norm, o.k_norm, o.positions,
                                                  o.table, o.when(kept, o.of_raw, 0, 1), o.when(kept, o.of_rstd, 0, 1),
                                                  l, 1e-6f, norm.over, norm.one_plus});
      expect_agreement(card(), o.gradient(backward));
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

class CudaRopeFp8Test : public OnCard<::testing::TestWithParam<RopeCase>> {};

TEST_P(CudaRopeFp8Test, GivesTheBytesOfQuantize) {
  const std::int64_t n = GetParam().n;
  for (const Norm& norm : kNorms) {
    Memory memory;
    const RopeOperands o(memory, GetParam(), norm);
    for (Fp8Ask ask : kRowsOrColumns) {
      if (ask.columns && n % 16 != 0) continue;
      for (const bool accumulate : {false, true}) {
        ask.dtype = accumulate ? DType::e4m3 : DType::e5m2, ask.scale = accumulate ? 0x1p9f : 0x1p-13f;
        ask.amax = accumulate ? 100.0f : 0.0f;
        const RopeQkNormGrad<Tensor> op = o.gradient(accumulate);
        expect_bytes_of_quantize(card(), memory, op, &RopeQkNormGrad<Tensor>::dqkv, true, ask, {"dq_norm", "dk_norm"});
      }
    }
  }
}

// Among them: less than a tile; more units of work than blocks, and one block's units in several rows of tiles; heads
// of 64 where one unit has q and k, or k and v; all three in one unit; a last unit that is not full; heads that are
// cast after the update of dqkv (48, 96, 256); tokens that only rows can be made of.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaRopeFp8Test,
    ::testing::Values(RopeCase{16, {4, 4, 64}}, RopeCase{48, {4, 2, 128}}, RopeCase{1040, {4, 2, 64}},
                      RopeCase{128, {3, 1, 64}}, RopeCase{144, {7, 1, 64}}, RopeCase{1040, {16, 8, 128}},
                      RopeCase{4096, {16, 8, 128}}, RopeCase{8192, {12, 12, 64}}, RopeCase{272, {5, 1, 32}},
                      RopeCase{16, {1, 1, 16}}, RopeCase{528, {9, 3, 16}}, RopeCase{2064, {6, 2, 32}},
                      RopeCase{40960, {2, 1, 128}}, RopeCase{336, {8, 2, 48}}, RopeCase{336, {3, 3, 96}},
                      RopeCase{160, {2, 1, 256}}, RopeCase{1, {2, 1, 64}}, RopeCase{263, {5, 2, 128}}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaRopeFp8Test, ::testing::ValuesIn(random_cases<RopeCase>(6, [](auto draw) {
                           const std::int64_t n = 16 * draw(100), kv_heads = draw(6), group = draw(5);
                           return RopeCase{n, {kv_heads * group, kv_heads, std::int64_t{8} << draw(4)}};
                         })));

}  // namespace
}  // namespace redline::ops
