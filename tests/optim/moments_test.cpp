// Moments in fewer bytes: the maps of eight bits, rounding at random, and AdamW over them against doubles.
#include "optim/moments.h"

#include <set>

#include "base/step_state.h"
#include "optim/adamw.h"
#include "optim/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

TEST(DynamicMap, RisesFromItsSmallestToOneThroughZero) {
  for (const auto& [map, first] : {std::pair{&kSignedMap, 129}, {&kUnsignedMap, 0}}) {
    const auto value = [&, m = map, f = first](int i) { return m->values[static_cast<std::size_t>((f + i) % 256)]; };
    for (int i = 1; i < 256; ++i) EXPECT_LT(value(i - 1), value(i)) << i;
    EXPECT_EQ(value(255), 1.0f);
    EXPECT_EQ(std::ranges::count(map->values, 0.0f), 1);
    EXPECT_EQ(map->values[0], 0.0f) << "as memory begins";
  }
  for (std::size_t i = 1; i < 128; ++i) EXPECT_EQ(kSignedMap.values[256 - i], -kSignedMap.values[i]);
  EXPECT_FLOAT_EQ(kSignedMap.values[1], 0.55e-6f);
  EXPECT_FLOAT_EQ(kSignedMap.values[127], 1 - 0.45f / 64);
  EXPECT_EQ(kUnsignedMap.values[0], 0.0f);
  EXPECT_FLOAT_EQ(kUnsignedMap.values[1], 0.325e-6f);
  EXPECT_FLOAT_EQ(kUnsignedMap.values[2], 0.775e-6f);
  EXPECT_FLOAT_EQ(kUnsignedMap.values[254], 1 - 0.45f / 128);
}

double nearest_distance(const DynamicMap& map, double x) {
  double best = 2;
  for (const float value : map.values) best = std::min(best, std::abs(x - static_cast<double>(value)));
  return best;
}

TEST(DynamicMap, CodesAreThoseOfTheNearestValue) {
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(signed_code(kSignedMap.values[i], kSignedMap), i);
    EXPECT_EQ(unsigned_code(kUnsignedMap.values[i], kUnsignedMap), i);
  }
  const Random random(3, 1);
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(std::pow(10.0, -8 * random.uniform(2 * i)));
    const float sign = random.bits(2 * i + 1) % 2 ? 1.0f : -1.0f;
    const auto distance = [&](float y, float value) {
      return std::abs(static_cast<double>(y) - static_cast<double>(value));
    };
    const double within = 2e-7 * static_cast<double>(x);
    EXPECT_LE(distance(sign * x, kSignedMap.values[signed_code(sign * x, kSignedMap)]),
              nearest_distance(kSignedMap, static_cast<double>(sign * x)) + within);
    const std::uint8_t code = unsigned_code(x, kUnsignedMap);
    if (code > 1) {
      EXPECT_LE(distance(x, kUnsignedMap.values[code]),
                nearest_distance(kUnsignedMap, static_cast<double>(x)) + within);
    }
  }
  EXPECT_EQ(signed_code(2.0f, kSignedMap), 128);
  EXPECT_EQ(signed_code(-2.0f, kSignedMap), 129);
  EXPECT_EQ(unsigned_code(std::numeric_limits<float>::infinity(), kUnsignedMap), 255);
}

TEST(DynamicMap, ASecondMomentThatIsNotZeroStaysSo) {
  for (const float x : {1e-7f, 1e-20f, 1e-44f}) EXPECT_EQ(unsigned_code(x, kUnsignedMap), 1) << x;
  EXPECT_EQ(unsigned_code(0.0f, kUnsignedMap), 0);
  // The smallest number there is beside a large one, and blocks whose largest is hardly above zero.
  for (const float largest : {3e38f, 1.0f, 1e-30f, 1e-42f}) {
    const float moments[] = {largest, 1e-45f, 0.0f};
    std::uint8_t codes[3];
    const float scale = cpu::encode_second_moments(moments, 3, codes);
    float back[3];
    cpu::decode_moments(kUnsignedMap, codes, 3, scale, back);
    EXPECT_GT(back[0], 0.0f);
    EXPECT_GT(back[1], 0.0f) << largest;
    EXPECT_EQ(back[2], 0.0f);
  }
}

TEST(DynamicMap, ABlocksScaleIsItsLargestMagnitude) {
  float moments[] = {0.25f, -2.0f, 1e-3f, 0.0f};
  std::uint8_t codes[4];
  EXPECT_EQ(cpu::encode_first_moments(moments, 4, codes), 2.0f);
  EXPECT_EQ(codes[3], 0);
  std::ranges::fill(moments, 0.0f);
  EXPECT_EQ(cpu::encode_first_moments(moments, 4, codes), 0.0f);
  EXPECT_EQ(codes[0], 0);
  moments[2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::encode_first_moments(moments, 4, codes), std::numeric_limits<float>::max());
  EXPECT_EQ(codes[2], 128);
}

TEST(RandomRounding, MeansAreTheNumbersThemselves) {
  const Random random(5, kMomentStreams);
  constexpr int kDraws = 1 << 16;
  for (const float x : {1.0f + 0x1p-9f, -3.0001f, 1e-20f, 7.77e-41f, 0.1f}) {
    double sum = 0;
    std::set<std::uint16_t> seen;
    for (std::uint64_t i = 0; i < kDraws / 8; ++i)
      for (const std::uint32_t word : random.words(i))
        for (const std::uint32_t bits : {first_bits(word), second_bits(word)}) {
          const std::uint16_t rounded = bf16_at_random(x, bits);
          seen.insert(rounded);
          sum += static_cast<double>(f32_from_bf16(rounded));
        }
    ASSERT_EQ(seen.size(), 2u) << x;
    const double low = static_cast<double>(f32_from_bf16(*seen.begin())),
                 high = static_cast<double>(f32_from_bf16(*seen.rbegin())), step = std::abs(high - low);
    EXPECT_GT(std::abs(static_cast<double>(x) - low), 0);
    EXPECT_NEAR(sum / kDraws, static_cast<double>(x), 5 * 0.5 * step / std::sqrt(kDraws)) << x;
  }
}

TEST(RandomRounding, KeepsWhatBf16Has) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint32_t bits : {0u, 1u, 0x7FFFu, 0xFFFFu}) {
    for (const float x : {0.0f, 1.0f, -0.375f, 0x1p-130f, infinity, -infinity})
      EXPECT_EQ(f32_from_bf16(bf16_at_random(x, bits)), x);
    EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_at_random(std::numeric_limits<float>::quiet_NaN(), bits))));
  }
}

// Numbers whose last place is larger than what a step takes off them: to the nearest they would stay where they are.
TEST(RandomRounding, ASlowDecayIsNotLost) {
  const Random random(5, kMomentStreams + 1);
  double sum = 0;
  float to_nearest = 1;
  for (std::uint64_t i = 0; i < 256; ++i) {
    float x = 1;
    for (std::uint64_t step = 0; step < 700; ++step)
      x = f32_from_bf16(bf16_at_random(0.999f * x, first_bits(random.words(i * 700 + step)[0])));
    sum += static_cast<double>(x);
  }
  for (int step = 0; step < 700; ++step) to_nearest = f32_from_bf16(bf16_from_f32(0.999f * to_nearest));
  EXPECT_NEAR(sum / 256, std::pow(0.999, 700), 0.01);
  EXPECT_EQ(to_nearest, 1.0f);
}

// Arrays of an update whose moments are kept in one of three ways.
struct Update {
  Update(Memory& memory, DType moments, std::int64_t n, std::int64_t begin)
      : op{memory.uniform({n}),
           memory.uniform({n}, -5, 5),
           memory.array(moments, {n}),
           memory.array(moments, {n}),
           {},
           memory.object(StepState{.seed = 11, .lr = 0.01f, .correction1 = 0.19f, .correction2 = 0.0975f}),
           memory.object(UpdateResult{.grad_norm = 1, .grad_scale = 0.125f, .finite = 1}),
           {.eps = 1e-6f, .weight_decay = 0.2f}} {
    op.begin = begin;
    if (moments != DType::u8) return;
    const StateArray row{.name = "scales", .range = {begin, begin + n}, .block = kCutBlock};
    op.scales1 = memory.zeros({row.elements()});
    op.scales2 = memory.zeros({row.elements()});
  }

  // Moments as doubles, and how far a number may lie from the one that was kept there.
  double moment(bool first, std::int64_t i) const {
    const Tensor& t = first ? op.moment1 : op.moment2;
    if (t.dtype == DType::f32) return static_cast<double>(t.f32()[i]);
    if (t.dtype == DType::bf16) return static_cast<double>(f32_from_bf16(t.as<std::uint16_t>()[i]));
    const DynamicMap& map = first ? kSignedMap : kUnsignedMap;
    return static_cast<double>(map.values[t.as<std::uint8_t>()[i]] * scale(first, i));
  }
  float scale(bool first, std::int64_t i) const {
    return (first ? op.scales1 : op.scales2).f32()[(op.begin + i) / kCutBlock - op.begin / kCutBlock];
  }
  double allowed(bool first, std::int64_t i, double want) const {
    const Tensor& t = first ? op.moment1 : op.moment2;
    if (t.dtype == DType::f32) return 3e-7 * (1 + std::abs(want));
    if (t.dtype == DType::bf16) return 0x1p-7 * std::abs(want) + 1e-12;
    const auto s = static_cast<double>(scale(first, i));
    const double nearest = s * nearest_distance(first ? kSignedMap : kUnsignedMap, want / s);
    return (first ? nearest : std::max(nearest, 0.33e-6 * s)) + 1e-6 * s;  // one that is not zero stays so
  }

  AdamW<Tensor> op;
};

// A reference that follows what was kept: each step from the moments as they are.
TEST(SmallMoments, StepsMatchDoubles) {
  for (const DType moments : {DType::f32, DType::bf16, DType::u8})
    for (const std::int64_t n : {1, 5, 255, 1000, 40001})
      for (const std::int64_t begin : {0, 64, 301}) {
        Memory memory;
        const Update u(memory, moments, n, begin);
        const AdamWSettings& s = u.op.settings;
        const double b1 = static_cast<double>(s.beta1), b2 = static_cast<double>(s.beta2);
        for (std::uint64_t step = 0; step < 4; ++step) {
          StepState& state = *u.op.state.as<StepState>();
          state.step = step;
          Values want_p, want_m, want_v;
          for (std::int64_t i = 0; i < n; ++i) {
            const double g = 0.125 * static_cast<double>(u.op.gradients.f32()[i]), lr = static_cast<double>(state.lr);
            const double p = static_cast<double>(u.op.parameters.f32()[i]);
            want_m.push_back(b1 * u.moment(true, i) + (1 - b1) * g);
            want_v.push_back(b2 * u.moment(false, i) + (1 - b2) * g * g);
            const double root = std::sqrt(want_v.back() / static_cast<double>(state.correction2));
            const double move =
                want_m.back() / static_cast<double>(state.correction1) / (root + static_cast<double>(s.eps));
            want_p.push_back(p - lr * static_cast<double>(s.weight_decay) * p - lr * move);
          }
          if (step == 0)
            run_checked(memory, u.op);
          else
            cpu::run(u.op, *all_pools().back());
          expect_close("parameters", u.op.parameters, want_p, 3e-7);
          for (std::int64_t i = 0; i < n; ++i) {
            const auto at = static_cast<std::size_t>(i);
            ASSERT_NEAR(u.moment(true, i), want_m[at], u.allowed(true, i, want_m[at])) << name_of(moments) << " " << i;
            ASSERT_NEAR(u.moment(false, i), want_v[at], u.allowed(false, i, want_v[at]))
                << name_of(moments) << " " << i;
            ASSERT_EQ(want_v[at] > 0, u.moment(false, i) > 0);
          }
        }
      }
}

// Ranks that have whole blocks each: the same bits as one that has all.
TEST(SmallMoments, PartsOfAnUpdateHaveTheBitsOfTheWhole) {
  const std::int64_t n = 5000, begin = 192;
  for (const DType moments : {DType::bf16, DType::u8}) {
    Memory memory, other;
    const Update whole(memory, moments, n, begin), cut(other, moments, n, begin);
    for (std::uint64_t step = 0; step < 3; ++step) {
      whole.op.state.as<StepState>()->step = cut.op.state.as<StepState>()->step = step;
      cpu::run(whole.op, *all_pools().front());
      for (const auto& [from, to] : {std::pair{begin, std::int64_t{256}}, {256, 2048}, {2048, begin + n}}) {
        AdamW<Tensor> part = cut.op;
        const auto piece = [&, from = from, to = to](Tensor& t, std::int64_t block) {
          if (!t.present()) return;
          const StateArray row{.name = "scales", .range = {begin, begin + n}, .block = block};
          t.data =
              t.as<std::byte>() + row.first_of({from, to}, row.range) * static_cast<std::int64_t>(size_of(t.dtype));
          t.shape = {row.elements_of({from, to})};
        };
        for (Tensor* t : {&part.parameters, &part.gradients, &part.moment1, &part.moment2}) piece(*t, 1);
        for (Tensor* t : {&part.scales1, &part.scales2}) piece(*t, kCutBlock);
        part.begin = from;
        cpu::run(part, *all_pools().back());
      }
    }
    EXPECT_EQ(memory.arrays(), other.arrays()) << name_of(moments);
  }
}

TEST(SmallMoments, ADrawIsTheStepsAndTheSeeds) {
  std::set<std::vector<std::uint8_t>> seen;
  for (const std::uint64_t seed : {1, 2})
    for (const std::uint64_t step : {0, 1}) {
      Memory memory;
      const Update u(memory, DType::bf16, 1000, 0);
      u.op.state.as<StepState>()->seed = seed;
      u.op.state.as<StepState>()->step = step;
      cpu::run(u.op, *all_pools().front());
      const auto* bytes = u.op.moment1.as<std::uint8_t>();
      seen.emplace(bytes, bytes + u.op.moment1.bytes());
    }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(SmallMoments, NothingIsTouchedWhenNotFinite) {
  for (const DType moments : {DType::bf16, DType::u8}) {
    Memory memory;
    const Update u(memory, moments, 700, 64);
    cpu::run(u.op, *all_pools().front());
    u.op.result.as<UpdateResult>()->finite = 0;
    const auto before = memory.arrays();
    cpu::run(u.op, *all_pools().front());
    EXPECT_EQ(memory.arrays(), before);
  }
}

TEST(SmallMoments, RowsOfCodesHaveAScaleForEachBlockThatTheyTouch) {
  const StateTable table = adamw_state({192, 1000}, {}, DType::u8);
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table[0].dtype, DType::u8);
  EXPECT_TRUE(table[1].by_parameter());
  EXPECT_EQ(table[1].elements(), 808);
  for (const StateArray& scales : {table[2], table[3]}) {
    EXPECT_EQ(scales.dtype, DType::f32);
    EXPECT_EQ(scales.elements(), 4);
    EXPECT_EQ(scales.elements_of({256, 512}), 1);
    EXPECT_EQ(scales.first_of({256, 512}, scales.range), 1);
    EXPECT_TRUE(scales.cuts_no_block({192, 256}));
    EXPECT_TRUE(scales.cuts_no_block({512, 1000}));
    EXPECT_FALSE(scales.cuts_no_block({192, 300}));
    EXPECT_FALSE(scales.cuts_no_block({300, 1000}));
    EXPECT_EQ(scales.elements_of({256, 256}), 0);
  }
  const StateTable halves = adamw_state({0, 1000}, {}, DType::bf16);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_EQ(halves[0].dtype, DType::bf16);
}

}  // namespace
}  // namespace redline::optim
