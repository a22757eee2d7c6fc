// Residual add and RMSNorm on the card, with and without a branch, over rows of a warp, of several and of a block; and
// what they write in eight bits by themselves; the norm after a branch, and plain sums, in place too.
#include "ops/cuda/fp8_check.h"

namespace redline::ops {
namespace {

struct AddNormCase {
  std::int64_t n, d;
};
class CudaAddNormTest : public OnCard<::testing::TestWithParam<AddNormCase>> {};

TEST_P(CudaAddNormTest, AgreesWithTheCpu) {
  const auto [n, d] = GetParam();
  for (bool with_branch : {true, false}) {
    Memory memory;
    const Tensor absent, residual_in = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor branch = with_branch ? memory.uniform({n, d}) : absent;
    const Tensor residual_out = with_branch ? memory.zeros({n, d}) : absent;
    const Tensor y = memory.zeros({n, d}), rstd = memory.zeros({n});
    // With a branch weights count as 1 + w, without as they are.
    expect_agreement(card(),
                     AddNorm<Tensor>{residual_in, branch, weight, residual_out, y, rstd, 1e-5f, {}, with_branch});
    const Tensor dy = memory.uniform({n, d}), dresidual = memory.uniform({n, d}), dweight = memory.uniform({d});
    expect_agreement(card(), AddNormGrad<Tensor>{dy,
                                                 residual_in,
                                                 weight,
                                                 rstd,
                                                 dresidual,
                                                 dweight,
                                                 memory.zeros({kRowGroups, d}),
                                                 with_branch,
                                                 with_branch,
                                                 {},
                                                 with_branch});
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAddNormTest,
                         ::testing::Values(AddNormCase{1, 5}, AddNormCase{1, 64}, AddNormCase{3, 7},
                                           AddNormCase{300, 24}, AddNormCase{33, 50}, AddNormCase{64, 256},
                                           AddNormCase{100, 129}, AddNormCase{2000, 640}, AddNormCase{257, 768},
                                           AddNormCase{1300, 1024}, AddNormCase{515, 2304}, AddNormCase{40, 4096},
                                           AddNormCase{5, 8192}, AddNormCase{3, 8191}, AddNormCase{1, 2048},
                                           AddNormCase{1111, 2048}, AddNormCase{300, 1528}, AddNormCase{300, 1536},
                                           AddNormCase{280, 2560}, AddNormCase{9, 5120}, AddNormCase{9, 5128},
                                           AddNormCase{600, 401}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaAddNormTest, ::testing::ValuesIn(random_cases<AddNormCase>(6, [](auto draw) {
                           const std::int64_t n = draw(700);
                           return AddNormCase{n, 4 + draw(3000)};  // of 1 the gradient is a difference of equals
                         })));

constexpr std::int64_t kWidest = 5120;  // of rows that are turned over where they are made

class CudaAddNormFp8Test : public OnCard<::testing::TestWithParam<AddNormCase>> {};

TEST_P(CudaAddNormFp8Test, BytesAreThoseOfQuantize) {
  const auto [n, d] = GetParam();
  for (const bool with_branch : {true, false}) {
    Memory memory;
    const Tensor absent, residual_in = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor branch = with_branch ? memory.uniform({n, d}) : absent;
    const Tensor residual_out = with_branch ? memory.zeros({n, d}) : absent;
    const Tensor y = memory.zeros({n, d}), rstd = memory.zeros({n});
    for (Fp8Ask ask : kRowsOrColumns) {
      if (ask.columns && n % 16 != 0) continue;
      for (const bool keeps : {true, false}) {
        if (!keeps && !ask.rows && d > kWidest) continue;  // no kernel has such columns by itself
        ask.scale = with_branch ? 64 : 256;                // the latter saturates
        ask.records = keeps;
        expect_bytes_of_quantize(
            card(), memory, AddNorm<Tensor>{residual_in, branch, weight, residual_out, y, rstd, 1e-5f, {}, with_branch},
            &AddNorm<Tensor>::y, keeps, ask);
      }
    }
  }
}

TEST_P(CudaAddNormFp8Test, BytesOfTheGradientAreThoseOfQuantize) {
  const auto [n, d] = GetParam();
  for (const bool accumulate : {true, false}) {
    Memory memory;
    const Tensor residual = memory.uniform({n, d}, -2, 2), weight = memory.uniform({d}, 0.5, 1.5);
    const Tensor rstd = memory.uniform({n}, 0.5, 1.5), dy = memory.uniform({n, d});
    const Tensor dresidual = memory.uniform({n, d}), dweight = memory.uniform({d});
    const Tensor partial = memory.zeros({kRowGroups, d});
    for (Fp8Ask ask : kRowsOrColumns) {
      if (ask.columns && n % 16 != 0) continue;
      ask.dtype = accumulate ? DType::e5m2 : DType::e4m3;
      ask.scale = accumulate ? 1024 : 128;
      ask.amax = ask.rows ? 0.0f : 1e6f;  // the latter stays
      // Columns are made in tiles, and the sums over rows go with them.
      const std::set<std::string> near = ask.columns ? std::set<std::string>{"dweight"} : std::set<std::string>{};
      expect_bytes_of_quantize(
          card(), memory,
          AddNormGrad<Tensor>{dy, residual, weight, rstd, dresidual, dweight, partial, accumulate, accumulate},
          &AddNormGrad<Tensor>::dresidual, true, ask, near);
    }
  }
}

// A block has one tile, or several, or the last is not whole; where only rows are asked for, any number of them.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaAddNormFp8Test,
                         ::testing::Values(AddNormCase{16, 64}, AddNormCase{16, 4096}, AddNormCase{48, 80},
                                           AddNormCase{48, 2304}, AddNormCase{1040, 640}, AddNormCase{1040, 768},
                                           AddNormCase{2064, 1024}, AddNormCase{80, 1280}, AddNormCase{80, 1296},
                                           AddNormCase{1040, 1520}, AddNormCase{1040, 1536}, AddNormCase{1040, 2048},
                                           AddNormCase{528, 2560}, AddNormCase{528, 2576}, AddNormCase{96, 5120},
                                           AddNormCase{96, 5136}, AddNormCase{48, 6144}, AddNormCase{16, 8192},
                                           AddNormCase{33808, 64}, AddNormCase{8528, 1312}, AddNormCase{4304, 2576},
                                           AddNormCase{37, 96}, AddNormCase{1, 2048}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaAddNormFp8Test,
                         ::testing::ValuesIn(random_cases<AddNormCase>(8, [](auto draw) {
                           const std::int64_t n = 16 * draw(130);
                           return AddNormCase{n, 48 + 16 * draw(253)};
                         })));

class CudaNormAddTest : public OnCard<::testing::TestWithParam<AddNormCase>> {};

TEST_P(CudaNormAddTest, AgreesWithTheCpu) {
  const auto [n, d] = GetParam();
  Memory memory;
  expect_agreement(card(),
                   NormAdd<Tensor>{memory.uniform({n, d}, -2, 2), memory.uniform({n, d}), memory.uniform({d}, 0.5, 1.5),
                                   memory.zeros({n, d}), memory.zeros({n}), 1e-5f});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaNormAddTest,
                         ::testing::Values(AddNormCase{1, 1}, AddNormCase{1, 64}, AddNormCase{3, 7},
                                           AddNormCase{300, 24}, AddNormCase{64, 256}, AddNormCase{100, 129},
                                           AddNormCase{257, 768}, AddNormCase{515, 2304}, AddNormCase{1111, 2048},
                                           AddNormCase{40, 4096}, AddNormCase{5, 8192}, AddNormCase{3, 8191}));

class CudaAddTest : public OnCard<::testing::TestWithParam<Shape>> {};

TEST_P(CudaAddTest, AgreesWithTheCpu) {
  Memory memory;
  const Tensor a = memory.uniform(GetParam()), b = memory.uniform(GetParam());
  expect_agreement(card(), Add<Tensor>{a, b, memory.zeros(GetParam())}, {.f32 = 0, .bf16 = 4e-3});
  expect_agreement(card(), Add<Tensor>{a, b, a}, {.f32 = 0, .bf16 = 4e-3});
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAddTest,
                         ::testing::Values(Shape{1}, Shape{1, 7}, Shape{13, 24}, Shape{300, 65}, Shape{4096, 640}));

// Needs no card.
TEST(RowsOfGroup, EveryRowIsInOneGroupAndNoneHasARoundMoreThanTheFirst) {
  for (const std::int64_t rows : {1, 2, 263, 264, 265, 529, 16384, 65536, 131072}) {
    for (const std::int64_t at_once : {1, 2, 6, 7}) {
      std::int64_t next = 0;
      const RowRange first = rows_of_group(0, rows, at_once);
      for (std::int64_t group = 0; group < kRowGroups; ++group) {
        const RowRange range = rows_of_group(group, rows, at_once);
        EXPECT_EQ(range.begin, next) << rows << " rows, group " << group;
        EXPECT_LE(range.end - range.begin, first.end - first.begin);
        next = range.end;
      }
      EXPECT_EQ(next, rows) << at_once << " at once";
    }
  }
}

}  // namespace
}  // namespace redline::ops
