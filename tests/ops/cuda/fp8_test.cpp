// Casts to eight bits on the card are the CPU's to the bit, by rows and by columns, of every number and at many shapes;
// so are scales and counts. Products of what was cast agree with the CPU's as far as sums do. Kernels that cast their
// own results have tests of their own.
#include <limits>

#include "base/step_state.h"
#include "ops/fp8_values.h"
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

const Agreement kExactly{.types = {DType::bf16}, .shifts = {0}, .exact = true};
constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

class CudaFp8 : public OnCard<> {
 protected:
  // By rows, by columns, whole or in blocks, both ways, and with the largest recorded or not.
  void expect_casts(Memory& memory, const Tensor& x, float scale) {
    const std::int64_t n = x.rows(), d = x.columns();
    for (const DType dtype : kFormats) {
      for (const int ways : {1, 2, 3, 4, 5}) {
        for (const float before : {-1.0f, 0.0f, 5.0f}) {  // of what was recorded; below 0: nothing is
          Fp8Copies<Tensor> to{.scale = scale_entry(memory, scale)};
          if (ways & 1) to.rows = memory.array(dtype, {n, d});
          if (ways & 2) to.columns = memory.array(dtype, {d, n});
          if (ways & 4) to.columns = memory.array(dtype, columns_in_blocks(n, d));
          if (before >= 0) {
            to.amax = memory.zeros({1});
            *to.amax.f32() = before;
          }
          expect_agreement(card(), Quantize<Tensor>{x, to}, kExactly);
        }
      }
    }
  }
};

// Subnormal numbers, ties, what is too large, negative zero, infinities and NaN.
TEST_F(CudaFp8, EveryNumberIsCastAsTheCpuCastsIt) {
  for (const float scale : {1.0f, 0x1p-9f, 0x1p12f}) {
    Memory memory;
    expect_casts(memory, every_bf16(memory), scale);
  }
}

// Tiles are 128 rows and 64 columns: one, several, and parts of them.
TEST_F(CudaFp8, AnyShapeOfMultiplesOfSixteenIsCast) {
  for (const Shape& shape :
       {Shape{16, 16}, Shape{16, 64}, Shape{128, 16}, Shape{128, 64}, Shape{112, 48}, Shape{144, 80}, Shape{272, 208},
        Shape{1024, 16}, Shape{16, 2304}, Shape{256, 768}, Shape{400, 1040}}) {
    Memory memory;
    expect_casts(memory, of_all_sizes(memory, shape, -24, 16), 0x1p2f);
  }
}

TEST_F(CudaFp8, WhatIsInEightBitsIsTurnedOver) {
  for (const DType dtype : kFormats) {
    for (const Shape& shape : {Shape{16, 16}, Shape{128, 64}, Shape{144, 48}, Shape{624, 1040}}) {
      Memory memory;
      const Tensor x = memory.array(dtype, shape), columns = memory.array(dtype, {shape[1], shape[0]});
      for (std::int64_t i = 0; i < x.elements(); ++i)
        x.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
      expect_agreement(card(), Quantize<Tensor>{x, {.columns = columns}}, kExactly);
      const Tensor blocks = memory.array(dtype, columns_in_blocks(shape[0], shape[1]));
      expect_agreement(card(), Quantize<Tensor>{x, {.columns = blocks}}, kExactly);
    }
  }
}

TEST_F(CudaFp8, TheLargestIsFoundWhereverItStands) {
  constexpr float kLargest[] = {3.5f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
  for (const float largest : kLargest) {
    for (const std::int64_t at : {0, 1, 7, 63, 64, 4095, 16383, 20000, 26623}) {
      Memory memory;
      const Tensor x = memory.uniform({208, 128});
      x.f32()[at] = -largest;
      const Tensor rows = memory.array(DType::e5m2, x.shape), scale = scale_entry(memory, 1), amax = memory.zeros({1});
      expect_agreement(card(), Quantize<Tensor>{x, {rows, {}, scale, amax}}, kExactly);
      EXPECT_TRUE(*amax.f32() == largest || std::isnan(largest));
    }
  }
}

TEST_F(CudaFp8, WeightsHaveTheScaleOfTheirLargest) {
  for (const Shape& shape : {Shape{16, 16}, Shape{48, 80}, Shape{768, 256}, Shape{2304, 768}}) {
    for (const DType dtype : kFormats) {
      for (const int ways : {1, 2, 3}) {
        for (const double exponent : {-20.0, -4.0, 6.0}) {
          Memory memory;
          const Tensor weight = of_all_sizes(memory, shape, exponent - 10, exponent), scale = scale_entry(memory, 1);
          const Tensor rows = ways & 1 ? memory.array(dtype, shape) : Tensor{};
          const Tensor columns = ways & 2 ? memory.array(dtype, {shape[1], shape[0]}) : Tensor{};
          expect_agreement(card(), QuantizeWeight<Tensor>{weight, rows, columns, scale}, kExactly);
        }
      }
    }
  }
  // Several matrices, each with a scale of its own, and each turned over for itself.
  for (const Shape& shape : {Shape{3, 16, 48}, Shape{5, 144, 80}, Shape{64, 32, 16}}) {
    Memory memory;
    const Tensor weight = of_all_sizes(memory, {shape[0] * shape[1], shape[2]}, -10, 0);
    for (std::int64_t i = 0; i < weight.elements(); ++i)
      weight.f32()[i] *= std::exp2(static_cast<float>(i / (shape[1] * shape[2]) % 7));
    const Tensor rows = memory.array(DType::e4m3, shape),
                 turned = memory.array(DType::e4m3, {shape[0], shape[2], shape[1]});
    const Tensor scales = memory.zeros({shape[0] * kScaleFloats});
    expect_agreement(card(), QuantizeWeight<Tensor>{{weight.data, weight.dtype, shape}, rows, turned, scales},
                     kExactly);
    expect_agreement(card(), Quantize<Tensor>{rows, {.columns = turned}}, kExactly);
  }
  Memory memory;
  const Tensor zeros = memory.zeros({32, 48}), rows = memory.array(DType::e4m3, {32, 48});
  expect_agreement(card(), QuantizeWeight<Tensor>{zeros, rows, {}, scale_entry(memory, 4)}, kExactly);
}

TEST_F(CudaFp8, ScalesOfNormsAreTheCpus) {
  for (const std::int64_t d : {16, 48, 768, 2048, 2304, 8192}) {
    for (const double size : {1e-3, 1.0, 40.0}) {
      Memory memory;
      const Tensor weight = memory.uniform({d}, -size, size), scale = memory.zeros({kScaleFloats});
      expect_agreement(card(), BoundScale<Tensor>{weight, scale}, kExactly);
    }
  }
}

TEST_F(CudaFp8, TheLargestOfAPartIsTheCpus) {
  for (const bool one_plus : {false, true}) {
    for (const Shape& shape : {Shape{1, 16}, Shape{3, 64}, Shape{7, 256}, Shape{2304, 1024}}) {
      if (one_plus && shape.elements() > 4096) continue;  // norms are small
      Memory memory;
      const Tensor weight = memory.uniform(shape, -2, 2), amax = memory.zeros({1});
      // Sums of 1 and w that bf16 holds: the CPU rounds them to it.
      if (one_plus)
        for (std::int64_t i = 0; i < weight.elements(); ++i) weight.f32()[i] = std::round(weight.f32()[i] * 32) / 32;
      expect_agreement(card(), Largest<Tensor>{weight, amax, one_plus}, kExactly);
      *amax.f32() = 100;  // larger than any
      expect_agreement(card(), Largest<Tensor>{weight, amax, one_plus}, kExactly);
    }
  }
}

TEST_F(CudaFp8, ScalesOfRecordsAreTheCpus) {
  constexpr std::int64_t kEntries = 300;
  Memory memory;
  const Tensor scales = memory.zeros({kEntries, kScaleFloats}), amax = memory.uniform({kEntries}, 0, 50);
  amax.f32()[7] = 0;
  expect_agreement(card(), SetScales<Tensor>{scales, amax, kE4m3.largest, std::sqrt(768.0f)}, kExactly);
}

// Twenty steps of many entries, each with what the one before left, made or skipped, and nothing or no number recorded.
TEST_F(CudaFp8, ScalesMoveAsOnTheCpu) {
  constexpr std::int64_t kEntries = 300;
  Memory memory;
  const Tensor scales = memory.zeros({kEntries, kScaleFloats}), amax = memory.zeros({kEntries});
  const Tensor result = memory.object(UpdateResult{});
  const Random random(3, 3);
  for (int step = 0; step < 20; ++step) {
    result.as<UpdateResult>()->finite = step % 5 == 3 ? 0.0f : 1.0f;
    for (std::int64_t i = 0; i < kEntries; ++i) {
      const auto draw = static_cast<std::uint64_t>(step * kEntries + i);
      const auto size = static_cast<float>(std::exp2(-70 + 140 * random.uniform(draw)));
      const float hard[] = {0, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
      amax.f32()[i] = draw % 7 == 0 ? hard[draw / 7 % 3] : size;
    }
    const MoveScales<Tensor> op{scales, amax, step % 2 ? result : Tensor{}, kE5m2.largest / 64};
    expect_agreement(card(), op, kExactly);
  }
}

struct ProductCase {
  std::int64_t m, n, k;
};
class CudaFp8Product : public OnCard<::testing::TestWithParam<ProductCase>> {};

// Tensor cores of Hopper's kind align what they add to fewer bits than fp32 has; with fast sums for all of k.
TEST_P(CudaFp8Product, AgreesWithTheCpu) {
  const auto [m, n, k] = GetParam();
  for (const auto& [of_a, of_b] :
       {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}}) {
    for (const bool accumulate : {false, true}) {
      for (const bool fast : {false, true}) {
        Memory memory;
        const auto cast = [&](DType dtype, Shape shape, const Tensor& scale) {
          const Tensor t = memory.array(dtype, shape);
          cpu::run(Quantize<Tensor>{memory.uniform(shape), {t, {}, scale, {}}}, *all_pools()[1]);
          return t;
        };
        const Tensor a_scale = scale_entry(memory, 0x1p7f), b_scale = scale_entry(memory, 0x1p-3f);
        const Tensor a = cast(of_a, {m, k}, a_scale), b = cast(of_b, {n, k}, b_scale), c = memory.uniform({m, n});
        Fp8Product<Tensor> op{a, b, a_scale, b_scale, c, accumulate};
        op.how.fast_sums = fast;
        SCOPED_TRACE(fmt::format("{} x {}, {}fast", name_of(of_a), name_of(of_b), fast ? "" : "not "));
        const double sums = fast ? 5e-3 : 1e-3;
        expect_agreement(card(), op, {.f32 = sums, .bf16 = sums + 4e-3, .shifts = {0}});
        if (accumulate) continue;
        op.bias = memory.uniform({n});  // which the library has in bf16 alone
        expect_agreement(card(), op, {.bf16 = sums + 4e-3, .types = {DType::bf16}, .shifts = {0}});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaFp8Product,
                         ::testing::Values(ProductCase{16, 16, 16}, ProductCase{48, 80, 112}, ProductCase{256, 144, 64},
                                           ProductCase{512, 768, 256}, ProductCase{768, 256, 2048},
                                           ProductCase{1024, 2304, 768}));

class CudaCountFp8Test : public OnCard<::testing::TestWithParam<Shape>> {};

TEST_P(CudaCountFp8Test, AgreesWithTheCpu) {
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    for (const int kinds : {256, 0x7B, 1}) {  // all codes, finite and positive ones, zeros alone
      Memory memory;
      const Tensor copy = memory.array(dtype, GetParam());
      const Random random(5, static_cast<std::uint64_t>(kinds));
      for (std::int64_t i = 0; i < copy.elements(); ++i)
        copy.as<std::uint8_t>()[i] =
            static_cast<std::uint8_t>(random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(kinds)));
      const Tensor count = memory.object(Fp8Count{.saturated = 1, .zeros = 2, .not_finite = 3, .largest = 4});
      const CountFp8<Tensor> op{copy, count};
      const CardOp<CountFp8<Tensor>> on_card(card(), op, DType::f32, 0);
      cpu::run(op, *all_pools().back());
      cuda::run(on_card.op(), card().launch());
      const Bytes codes = on_card.bytes(on_card.operands()[0]), found = on_card.bytes(on_card.operands()[1]);
      EXPECT_EQ(std::memcmp(found.data(), count.data, sizeof(Fp8Count)), 0)
          << name_of(dtype) << ", " << kinds << " kinds of codes";
      EXPECT_EQ(std::memcmp(codes.data(), copy.data, codes.size()), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCountFp8Test,
                         ::testing::Values(Shape{16}, Shape{1, 48}, Shape{16, 512}, Shape{1000, 4096},
                                           Shape{4096, 8192}));

}  // namespace
}  // namespace redline::ops
