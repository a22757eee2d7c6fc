// Casts to eight bits, element by element; how scales are found and how they move; products of what was cast against
// doubles, and how far they are from products of what was not; counts of every code.
#include "ops/fp8.h"

#include <limits>

#include "base/step_state.h"
#include "ops/cpu/kernels.h"
#include "ops/fp8_values.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

Fp8Scale& entry(const Tensor& t) { return *t.as<Fp8Scale>(); }

void expect_casts(const Tensor& x, const Tensor& rows, const Tensor& columns, float scale) {
  const std::int64_t n = x.rows(), d = x.columns();
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < d; ++j) {
      const float value = x.f32()[i * d + j];
      for (const Tensor& copy : {rows, columns}) {
        if (!copy.present()) continue;
        const std::int64_t at = copy.data == rows.data   ? i * d + j
                                : copy.shape.rank() == 3 ? i / 128 * 128 * d + j * 128 + i % 128
                                                         : j * n + i;
        ASSERT_TRUE(is_cast_of(copy.as<std::uint8_t>()[at], value, scale, copy.dtype))
            << value << " * " << scale << " in " << name_of(copy.dtype) << ", row " << i << ", column " << j;
      }
    }
  }
}

// By rows, by columns, whole or in blocks, and both ways. What a block has after the last row is zero.
void expect_quantized(Memory& memory, const Tensor& x, float scale) {
  const std::int64_t n = x.rows(), d = x.columns();
  for (const DType dtype : kFormats) {
    for (const int ways : {1, 2, 3, 4, 5}) {
      Fp8Copies<Tensor> to{.scale = scale_entry(memory, scale)};
      if (ways & 1) to.rows = memory.array(dtype, {n, d});
      if (ways & 2) to.columns = memory.array(dtype, {d, n});
      if (ways & 4) to.columns = memory.array(dtype, columns_in_blocks(n, d));
      run_checked(memory, Quantize<Tensor>{x, to});
      expect_casts(x, to.rows, to.columns, scale);
      for (std::int64_t i = n; ways & 4 && i < to.columns.shape[0] * kColumnBlock; ++i)
        for (std::int64_t j = 0; j < d; ++j)
          ASSERT_EQ(to.columns.as<std::uint8_t>()[i / 128 * 128 * d + j * 128 + i % 128], 0) << i << ", " << j;
    }
  }
}

TEST(Quantize, CastsEveryNumber) {
  for (const float scale : {1.0f, 0x1p-9f, 0x1p12f}) {
    Memory memory;
    expect_quantized(memory, every_bf16(memory), scale);
  }
}

TEST(Quantize, CastsWhatBf16KeepsAtAnyShape) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{16, 48}, Shape{63, 65}, Shape{130, 64}, Shape{1, 200}}) {
    Memory memory;
    expect_quantized(memory, of_all_sizes(memory, shape, -30, 20), 0x1p3f);
  }
}

TEST(Quantize, TurnsOverWhatIsInEightBits) {
  for (const DType dtype : kFormats) {
    Memory memory;
    const Tensor x = memory.array(dtype, {37, 70}), columns = memory.array(dtype, {70, 37});
    for (std::int64_t i = 0; i < x.elements(); ++i) x.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 7);
    run_checked(memory, Quantize<Tensor>{x, {.columns = columns}});
    const Tensor blocks = memory.array(dtype, columns_in_blocks(37, 70));
    run_checked(memory, Quantize<Tensor>{x, {.columns = blocks}});
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      ASSERT_EQ(columns.as<std::uint8_t>()[i % 70 * 37 + i / 70], x.as<std::uint8_t>()[i]) << i;
      ASSERT_EQ(blocks.as<std::uint8_t>()[i % 70 * 128 + i / 70], x.as<std::uint8_t>()[i]) << i;
    }
  }
}

TEST(Quantize, RecordsTheLargestMagnitudeThatBf16Keeps) {
  Memory memory;
  const Tensor x = memory.uniform({9, 31}), amax = memory.zeros({1}), scale = scale_entry(memory, 1);
  const Quantize<Tensor> op{x, {memory.array(DType::e5m2, x.shape), {}, scale, amax}};
  const auto recorded = [&](float before) {
    *amax.f32() = before;
    run_checked(memory, op);
    return *amax.f32();
  };
  x.f32()[100] = -3.005f;  // rounds to -3
  EXPECT_EQ(recorded(0), 3.0f);
  EXPECT_EQ(recorded(2.5f), 3.0f);
  EXPECT_EQ(recorded(7.0f), 7.0f) << "an earlier micro-batch had more";
  EXPECT_TRUE(std::isnan(recorded(kNan)));
  x.f32()[17] = kInfinity;
  EXPECT_EQ(recorded(0), kInfinity);
  x.f32()[18] = -kNan;
  EXPECT_TRUE(std::isnan(recorded(0)));
}

TEST(QuantizeWeight, BringsTheLargestToTheTopOfTheFormat) {
  for (const DType dtype : kFormats) {
    const float largest = fp8_format(dtype).largest;
    for (const double exponent : {-12.0, -3.0, 0.0, 9.0}) {
      Memory memory;
      const Tensor weight = of_all_sizes(memory, {48, 33}, exponent - 8, exponent), scale = scale_entry(memory, 1);
      const Tensor rows = memory.array(dtype, {48, 33}), columns = memory.array(dtype, {33, 48});
      entry(scale).history[3] = 5;  // of nothing that counts
      run_checked(memory, QuantizeWeight<Tensor>{weight, rows, columns, scale});
      float most = 0;
      for (std::int64_t i = 0; i < weight.elements(); ++i)
        most = std::max(most, std::abs(f32_from_bf16(bf16_from_f32(weight.f32()[i]))));
      const Fp8Scale& s = entry(scale);
      int power = 0;
      EXPECT_EQ(std::frexp(s.scale, &power), 0.5f) << "a power of two";
      EXPECT_LE(most * s.scale, largest);
      EXPECT_GT(most * s.scale, largest / 2);
      EXPECT_EQ(s.inverse, 1 / s.scale);
      EXPECT_EQ(s.amax, most);
      expect_casts(weight, rows, columns, s.scale);
    }
  }
}

TEST(QuantizeWeight, OfNothingHasTheScaleOne) {
  Memory memory;
  const Tensor scale = scale_entry(memory, 8), rows = memory.array(DType::e4m3, {16, 16});
  run_checked(memory, QuantizeWeight<Tensor>{memory.zeros({16, 16}), rows, {}, scale});
  EXPECT_EQ(entry(scale).scale, 1.0f);
}

TEST(BoundScale, NoOutputOfTheNormSaturates) {
  constexpr std::int64_t kRows = 40;
  for (const std::int64_t d : {16, 48, 1000}) {
    for (const double size : {0.01, 1.0, 30.0}) {
      Memory memory;
      const Tensor weight = memory.uniform({d}, -size, size), scale = scale_entry(memory, 1),
                   x = memory.zeros({kRows, d});
      run_checked(memory, BoundScale<Tensor>{weight, scale});
      // The worst that a norm can make: all of a row in one place.
      for (std::int64_t i = 0; i < kRows; ++i) x.f32()[i * d + i % d] = i % 2 ? 1e3f : -1e3f;
      const Tensor y = memory.zeros({kRows, d}), rstd = memory.zeros({kRows});
      cpu::run(AddNorm<Tensor>{x, {}, weight, {}, y, rstd, 1e-6f}, *all_pools()[0]);
      float most = 0;
      for (std::int64_t i = 0; i < y.elements(); ++i) most = std::max(most, std::abs(y.f32()[i]));
      EXPECT_LE(most * entry(scale).scale, kE4m3.largest * (1 + 1e-5f));
      float largest_weight = 0;
      for (std::int64_t i = 0; i < d; ++i)
        largest_weight = std::max(largest_weight, std::abs(f32_from_bf16(bf16_from_f32(weight.f32()[i]))));
      EXPECT_EQ(entry(scale).scale, scale_for(std::sqrt(static_cast<float>(d)) * largest_weight, kE4m3.largest));
    }
  }
}

// Parts of a weight, each with a record of its own, then the larger of both: the scale is that of the whole.
TEST(SetScales, OfPartsAreThoseOfTheWhole) {
  for (const bool one_plus : {false, true}) {
    for (const double size : {0.01, 1.0, 30.0}) {
      Memory memory;
      constexpr std::int64_t kD = 48, kCut = 16;
      const Tensor whole = memory.uniform({kD}, -size, size);
      const Tensor scale = scale_entry(memory, 1), wanted = scale_entry(memory, 1), amax = memory.zeros({1});
      const Tensor parts[] = {{whole.f32(), DType::f32, {1, kCut}}, {whole.f32() + kCut, DType::f32, {2, kCut}}};
      for (const Tensor& part : parts) run_checked(memory, Largest<Tensor>{part, amax, one_plus});
      const float factor = std::sqrt(static_cast<float>(kD));
      run_checked(memory, SetScales<Tensor>{scale, amax, kE4m3.largest, factor});
      run_checked(memory, BoundScale<Tensor>{whole, wanted, one_plus});
      EXPECT_EQ(entry(scale).scale, entry(wanted).scale) << size;
      EXPECT_EQ(entry(scale).inverse, entry(wanted).inverse) << size;
      EXPECT_EQ(entry(scale).amax, entry(wanted).amax) << size;
      EXPECT_EQ(*amax.f32(), 0.0f) << "the record starts again";
    }
  }
}

// One entry, step by step.
class MoveScalesTest : public ::testing::Test {
 protected:
  static constexpr float kTarget = 112;
  const Fp8Scale& step(float amax, bool made = true) {
    *amax_.f32() = amax;
    result_.as<UpdateResult>()->finite = made ? 1.0f : 0.0f;
    run_checked(memory_, MoveScales<Tensor>{scales_, amax_, result_, kTarget});
    EXPECT_EQ(*amax_.f32(), 0.0f) << "the record starts again";
    return entry(scales_);
  }
  Memory memory_;
  Tensor scales_ = memory_.zeros({1, kScaleFloats}), amax_ = memory_.zeros({1}),
         result_ = memory_.object(UpdateResult{});
};

TEST_F(MoveScalesTest, FollowsTheLargestOfSixteenSteps) {
  EXPECT_EQ(step(100).scale, 1.0f);
  for (int i = 1; i < kAmaxHistory; ++i) EXPECT_EQ(step(1).scale, 1.0f) << i;
  EXPECT_EQ(step(1).scale, 64.0f) << "the large one is forgotten";
  EXPECT_EQ(step(7).scale, 16.0f) << "more counts at once";
  EXPECT_EQ(entry(scales_).amax, 7.0f);
  EXPECT_EQ(entry(scales_).next, 2.0f);
}

TEST_F(MoveScalesTest, AStepThatWasNotMadeRollsNothing) {
  step(3);
  const std::vector<double> before = values_of(scales_);
  for (const float amax : {1e4f, 0.0f, kNan}) {
    step(amax, false);
    EXPECT_EQ(values_of(scales_), before);
  }
}

TEST_F(MoveScalesTest, NothingRecordedOrNothingFiniteKeepsAnEntry) {
  step(3);
  step(5);
  const std::vector<double> before = values_of(scales_);
  for (const float amax : {0.0f, kNan, kInfinity}) {
    step(amax);
    EXPECT_EQ(values_of(scales_), before) << amax;
  }
}

TEST_F(MoveScalesTest, AFreshEntryHasTheScaleOne) {
  EXPECT_EQ(step(0).scale, 1.0f);
  EXPECT_EQ(entry(scales_).inverse, 1.0f);
  EXPECT_EQ(entry(scales_).next, 0.0f);
}

TEST_F(MoveScalesTest, ScalesArePowersOfTwoThatReachTheTargetAndNeverPassIt) {
  const Random random(4, 4);
  for (std::uint64_t i = 0; i < 300; ++i) {
    scales_ = memory_.zeros({1, kScaleFloats});
    const auto amax = static_cast<float>(std::exp2(-50 + 100 * random.uniform(i)));
    const Fp8Scale& s = step(amax);
    int power = 0;
    ASSERT_EQ(std::frexp(s.scale, &power), 0.5f);
    ASSERT_LE(s.scale * amax, kTarget) << amax;
    ASSERT_GT(s.scale * amax, kTarget / 2) << amax;
    ASSERT_EQ(s.inverse * s.scale, 1.0f);
  }
  for (const float amax : {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()}) {
    scales_ = memory_.zeros({1, kScaleFloats});
    const Fp8Scale& s = step(amax);
    EXPECT_TRUE(std::isnormal(s.scale * s.scale) && std::isnormal(s.inverse * s.inverse)) << amax;
  }
}

TEST(MoveScales, EntriesMoveApart) {
  Memory memory;
  constexpr std::int64_t kEntries = 5;
  const Tensor scales = memory.zeros({kEntries, kScaleFloats}), amax = memory.zeros({kEntries});
  for (std::int64_t i = 0; i < kEntries; ++i) amax.f32()[i] = std::exp2(static_cast<float>(i));
  run_checked(memory, MoveScales<Tensor>{scales, amax, {}, 448});
  for (std::int64_t i = 0; i < kEntries; ++i)
    EXPECT_EQ(scales.as<Fp8Scale>()[i].scale, std::exp2(static_cast<float>(8 - i))) << i;
}

TEST(Fp8Product, MatchesDoubles) {
  struct Extents {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Extents{1, 1, 16}, Extents{16, 48, 80}, Extents{130, 33, 64}}) {
    for (const auto& [of_a, of_b] :
         {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}}) {
      for (const bool accumulate : {false, true}) {
        Memory memory;
        // Any bytes that are numbers of middling size.
        const auto numbers = [&](DType dtype, Shape shape, std::uint64_t seed) {
          const Tensor t = memory.array(dtype, shape);
          const std::uint8_t one = fp8_from_f32(1, fp8_format(dtype));
          const auto drawn = random_integers(t.elements(), 24, seed);
          for (std::int64_t i = 0; i < t.elements(); ++i)
            t.as<std::uint8_t>()[i] =
                static_cast<std::uint8_t>((one - 12 + drawn[static_cast<std::size_t>(i)]) | (i % 3 ? 0x80 : 0));
          return t;
        };
        const Tensor a = numbers(of_a, {m, k}, 1), b = numbers(of_b, {n, k}, 2), c = memory.uniform({m, n});
        const Fp8Product<Tensor> op{a, b, scale_entry(memory, 0x1p5f), scale_entry(memory, 0x1p-3f), c, accumulate};
        const Values base = accumulate ? values_of(c) : Values();
        run_checked(memory, op);
        Values want = product_of_doubles(values_of(a), false, values_of(b), true, m, n, k);
        for (double& x : want) x *= 0x1p-2;
        expect_close("c", c, want, 1e-5, base);
      }
    }
  }
}

// The three products of a linear with all their casts, beside those of what was not cast: an error of 2.7% or 5.3% for
// each operand, that of E4M3 and of E5M2, and none on the whole.
TEST(Fp8Product, IsNearThatOfWhatWasNotCast) {
  constexpr std::int64_t kN = 96, kK = 144, kM = 128;
  Memory memory;
  ThreadPool& pool = *all_pools()[1];
  const auto normal = [&](Shape shape, double size, std::uint64_t stream) {
    const Tensor t = memory.zeros(shape);
    const Random random(8, stream);
    for (std::int64_t i = 0; i < t.elements(); ++i)
      t.f32()[i] = static_cast<float>(size * random.normal(static_cast<std::uint64_t>(i)));
    return t;
  };
  const Tensor x = normal({kN, kK}, 1, 1), weight = normal({kM, kK}, 0.02, 2), dy = normal({kN, kM}, 1e-5, 3);
  struct Cast {
    Tensor rows, columns, scale;
  };
  // As the second step finds them: the scale follows from what the first recorded.
  const auto cast = [&](const Tensor& t, DType dtype, float headroom) {
    const Cast c{memory.array(dtype, t.shape), memory.array(dtype, {t.shape[1], t.shape[0]}), scale_entry(memory, 1)};
    const Tensor amax = memory.zeros({1});
    const Quantize<Tensor> op{t, {c.rows, c.columns, c.scale, amax}};
    cpu::run(op, pool);
    cpu::run(MoveScales<Tensor>{c.scale, amax, {}, fp8_format(dtype).largest / headroom}, pool);
    cpu::run(op, pool);
    return c;
  };
  const Cast x8 = cast(x, DType::e4m3, 4), dy8 = cast(dy, DType::e5m2, 64);
  const Cast w8{memory.array(DType::e4m3, {kM, kK}), memory.array(DType::e4m3, {kK, kM}), scale_entry(memory, 1)};
  cpu::run(QuantizeWeight<Tensor>{weight, w8.rows, w8.columns, w8.scale}, pool);

  const Tensor y = memory.zeros({kN, kM}), dx = memory.zeros({kN, kK}), dweight = memory.zeros({kM, kK});
  const Tensor y8 = memory.zeros({kN, kM}), dx8 = memory.zeros({kN, kK}), dweight8 = memory.zeros({kM, kK});
  cpu::run(Linear<Tensor>{x, weight, y}, pool);
  cpu::run(LinearInputGrad<Tensor>{dy, weight, dx}, pool);
  cpu::run(LinearWeightGrad<Tensor>{x, dy, dweight}, pool);
  cpu::run(Fp8Product<Tensor>{x8.rows, w8.rows, x8.scale, w8.scale, y8}, pool);
  cpu::run(Fp8Product<Tensor>{dy8.rows, w8.columns, dy8.scale, w8.scale, dx8}, pool);
  cpu::run(Fp8Product<Tensor>{dy8.columns, x8.columns, dy8.scale, x8.scale, dweight8}, pool);

  const auto expect_near = [](const char* what, const Tensor& got, const Tensor& want, double most) {
    Values error = values_of(got);
    const Values exact = values_of(want);
    double mean = 0, along = 0;
    for (std::size_t i = 0; i < error.size(); ++i) {
      error[i] -= exact[i];
      mean += error[i] / static_cast<double>(error.size());
      along += error[i] * exact[i];
    }
    EXPECT_LE(typical(error), most * typical(exact)) << what;
    EXPECT_GE(typical(error), most / 4 * typical(exact)) << what << " was not cast";
    EXPECT_LE(std::abs(mean), 0.001 * typical(exact)) << what;
    // Nor does it shrink or grow: numbers grow rarer upwards within a step of the format, which gives E5M2 half a
    // percent.
    EXPECT_LE(std::abs(along), 0.006 * dot(exact, exact)) << what;
  };
  expect_near("y", y8, y, 0.04);
  expect_near("dx", dx8, dx, 0.06);
  expect_near("dweight", dweight8, dweight, 0.06);
}

// Products of groups in eight bits are those of what the codes stand for; a group without rows gives zeros, or leaves
// what it is added to. Each expert's matrix has its own scale.
TEST(GroupedFp8Product, IsThatOfItsNumbers) {
  constexpr std::int64_t kN = 304, kK = 32, kM = 16, kGroups = 4;
  Memory memory;
  ThreadPool& pool = *all_pools()[1];
  const Tensor at = memory.integers({0, 13, 13, 290, 301});  // over the ends of blocks of 128 rows
  const Tensor weight = memory.uniform({kGroups, kM, kK});
  for (std::int64_t i = 0; i < weight.elements(); ++i)
    weight.f32()[i] *= std::exp2(static_cast<float>(3 * (i / (kM * kK))));
  const Tensor w8 = memory.array(DType::e4m3, weight.shape), w8_turned = memory.array(DType::e4m3, {kGroups, kK, kM});
  const Tensor w_scales = memory.zeros({kGroups * kScaleFloats});
  cpu::run(QuantizeWeight<Tensor>{weight, w8, w8_turned, w_scales}, pool);
  const auto* const of_weight = w_scales.as<Fp8Scale>();
  for (std::int64_t g = 0; g + 1 < kGroups; ++g) EXPECT_GT(of_weight[g].scale, of_weight[g + 1].scale) << g;
  const Tensor again = memory.array(DType::e4m3, w8_turned.shape);
  cpu::run(Quantize<Tensor>{w8, {.columns = again}}, pool);
  EXPECT_EQ(values_of(again), values_of(w8_turned));

  const auto cast = [&](DType dtype, std::int64_t columns, float scale) {
    const Tensor values = memory.uniform({kN, columns});
    const Fp8Copies<Tensor> to{memory.array(dtype, {kN, columns}),
                               memory.array(dtype, columns_in_blocks(kN, columns)),
                               scale_entry(memory, scale),
                               {}};
    cpu::run(Quantize<Tensor>{values, to}, pool);
    return to;
  };
  // What codes stand for, their scales taken out.
  const auto numbers = [&](const Tensor& codes, const Fp8Scale* scales, std::int64_t matrices) {
    const Tensor t = memory.zeros(codes.shape);
    const Values v = values_of(codes);
    for (std::size_t i = 0; i < v.size(); ++i)
      t.f32()[i] = static_cast<float>(v[i]) * scales[static_cast<std::int64_t>(i) * matrices / t.elements()].inverse;
    return t;
  };
  const Fp8Copies<Tensor> x = cast(DType::e4m3, kK, 0x1p4f), dy = cast(DType::e5m2, kM, 0x1p-2f);
  const Tensor plain_x = numbers(x.rows, x.scale.as<Fp8Scale>(), 1),
               plain_dy = numbers(dy.rows, dy.scale.as<Fp8Scale>(), 1);
  const Tensor plain_w = numbers(w8, of_weight, kGroups);
  for (const bool accumulate : {false, true}) {
    const Tensor y = memory.uniform({kN, kM}), dx = memory.uniform({kN, kK}), dw = memory.uniform({kGroups, kM, kK});
    const Tensor want_y = memory.zeros(y.shape), want_dx = memory.zeros(dx.shape), want_dw = memory.zeros(dw.shape);
    for (const auto& [to, from] : {std::pair{want_y, y}, {want_dx, dx}, {want_dw, dw}})
      std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
    if (!accumulate) {
      cpu::run(GroupedFp8Product<Tensor>{x.rows, w8, at, x.scale, w_scales, y}, pool);
      cpu::run(GroupedLinear<Tensor>{plain_x, plain_w, at, want_y}, pool);
      expect_close("y", y, values_of(want_y), 1e-5);
    }
    cpu::run(GroupedFp8Product<Tensor>{dy.rows, w8_turned, at, dy.scale, w_scales, dx, accumulate}, pool);
    cpu::run(GroupedLinearInputGrad<Tensor>{plain_dy, plain_w, at, want_dx, accumulate}, pool);
    expect_close("dx", dx, values_of(want_dx), 1e-5);
    cpu::run(GroupedFp8WeightGrad<Tensor>{dy.columns, x.columns, at, dy.scale, x.scale, dw, kN, accumulate}, pool);
    cpu::run(GroupedLinearWeightGrad<Tensor>{plain_x, plain_dy, at, want_dw, accumulate}, pool);
    expect_close("dweight", dw, values_of(want_dw), 1e-5);
  }
}

TEST(CountFp8, KnowsEveryCode) {
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    Memory memory;
    const Tensor copy = memory.array(dtype, {256, 16});
    std::uint64_t not_finite = 0;
    for (int code = 0; code < 256; ++code) {
      for (int i = 0; i < 16; ++i) copy.as<std::uint8_t>()[16 * code + i] = static_cast<std::uint8_t>(code);
      not_finite += std::isfinite(f32_from_fp8(static_cast<std::uint8_t>(code), fp8_format(dtype))) ? 0 : 16;
    }
    const Tensor count = memory.object(Fp8Count{.saturated = 1, .zeros = 2, .not_finite = 3, .largest = 4});
    run_checked(memory, CountFp8<Tensor>{copy, count});
    const auto& found = *count.as<Fp8Count>();
    EXPECT_EQ(found.saturated, 1u + 32u) << "of either sign";
    EXPECT_EQ(found.zeros, 2u + 32u);
    EXPECT_EQ(found.not_finite, 3u + not_finite);
    EXPECT_EQ(found.largest, 0x7Fu);
  }
}

TEST(CountFp8, TheLargestIsThatOfTheCopy) {
  Memory memory;
  const Tensor copy = memory.array(DType::e4m3, {16});
  copy.as<std::uint8_t>()[5] = fp8_from_f32(-3.5f, kE4m3);
  copy.as<std::uint8_t>()[15] = fp8_from_f32(3.25f, kE4m3);
  const Tensor count = memory.object(Fp8Count{});
  run_checked(memory, CountFp8<Tensor>{copy, count});
  const auto& found = *count.as<Fp8Count>();
  EXPECT_EQ(f32_from_fp8(static_cast<std::uint8_t>(found.largest), kE4m3), 3.5f);
  EXPECT_EQ(found.zeros, 14u);
  EXPECT_EQ(found.saturated + found.not_finite, 0u);
}

}  // namespace
}  // namespace redline::ops
