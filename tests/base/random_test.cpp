// The generator is Philox 4x32-10 as published, and its distributions are what their names say.
#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "base/small_floats.h"
#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers that come with Random123.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, HighHalvesOfSeedStreamAndIndexAllMatter) {
  const std::uint64_t high = std::uint64_t{1} << 40;
  const std::uint64_t base = Random(1, 2).bits(3);
  EXPECT_NE(base, Random(1 + high, 2).bits(3));
  EXPECT_NE(base, Random(1, 2 + high).bits(3));
  EXPECT_NE(base, Random(1, 2).bits(3 + high));
  EXPECT_EQ(base, Random(1, 2).bits(3));
}

TEST(Random, UniformAndNormalHaveTheirMoments) {
  const Random random(7, 0);
  constexpr int kDraws = 200'000;
  double uniform_sum = 0, normal_sum = 0, normal_squares = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = random.uniform(i), z = random.normal(i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform_sum += u;
    normal_sum += z;
    normal_squares += z * z;
  }
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal_sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(normal_squares / kDraws, 1.0, 0.02);
}

TEST(Random, NormalsByTheBlockAreTheSameNumbers) {
  const Random random(11, 5);
  for (const std::size_t count : {1, 4, 255, 256, 257, 100'003}) {
    std::vector<float> block(count);
    random.fill_normals(77, block);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NEAR(static_cast<double>(block[i]), random.normals(77 + i / 4)[i % 4], 2e-6 + 2e-6 * std::abs(block[i]))
          << i;
  }
  // The extremes of a word: the smallest and the largest uniform.
  double largest = 0;
  std::vector<float> many(1 << 22);
  random.fill_normals(0, many);
  for (const float x : many) {
    ASSERT_TRUE(std::isfinite(x));
    largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  EXPECT_GT(largest, 4.5);
  EXPECT_LT(largest, 6.8);
}

// Initial weights follow from their seed, on every machine: products and sums that became one would have other bits.
TEST(Random, NormalsHaveTheSameBitsInEveryBuild) {
  std::vector<float> some(1 << 16);
  Random(11, 5).fill_normals(std::uint64_t{1} << 33, some);
  EXPECT_EQ(hash64(std::as_bytes(std::span(some))), 0x652e53cb10337f5d);
}

TEST(Random, ArraysOfNormalsAreTheseNumbersInTheirType) {
  const Random random(3, 8);
  ThreadPool one(1), three(3);
  for (const std::int64_t n : {1, 5, 2047, 2050, 70'001, 200'002}) {
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> want(count);
    random.fill_normals(6, want);
    std::vector<float> whole(count, 9), shared(count, 9);
    std::vector<std::uint16_t> halves(count, 9);
    const Normals from{.random = random, .first = 6, .mean = 0, .std = 0.02f};
    draw(from, {whole.data(), DType::f32, {n}}, one);
    draw(from, {shared.data(), DType::f32, {n}}, three);
    draw(from, {halves.data(), DType::bf16, {n}}, three);
    EXPECT_EQ(whole, shared) << n;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(whole[i], 0.02f * want[i]) << i;
      ASSERT_EQ(halves[i], bf16_from_f32(0.02f * want[i])) << i;
    }
    draw({.random = random, .first = 6, .mean = -1, .std = 0}, {whole.data(), DType::f32, {n}}, three);
    EXPECT_EQ(whole, std::vector<float>(count, -1)) << n;
  }
}

TEST(Random, BelowReachesEveryValueAndNoOther) {
  const Random random(3, 9);
  std::array<int, 7> seen{};
  for (std::uint64_t i = 0; i < 7000; ++i) {
    const std::uint64_t value = random.below(i, seen.size());
    ASSERT_LT(value, seen.size());
    ++seen[value];
  }
  for (const int times : seen) EXPECT_NEAR(times, 1000, 150);
}

}  // namespace
}  // namespace redline
