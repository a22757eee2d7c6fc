// The noise scale of gradients whose noise is known.
#include "train/step_phases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace redline::train {
namespace {

constexpr std::size_t kParameters = 40;
constexpr double kMean = 0.02, kDeviation = 0.5;  // of each parameter's gradient, a pair

// The squared norm of a sum over so many pairs: of normal numbers it is drawn at once.
std::vector<double> sum_of_pairs(double pairs, std::uint64_t stream) {
  const Random random(11, stream);
  std::vector<double> g(kParameters);
  for (std::size_t i = 0; i < kParameters; ++i) {
    const double u = std::max(random.uniform(2 * i), 1e-12), v = random.uniform(2 * i + 1);
    g[i] =
        pairs * kMean + std::sqrt(pairs) * kDeviation * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  }
  return g;
}
double squares(const std::vector<double>& g) {
  double sum = 0;
  for (const double x : g) sum += x * x;
  return sum;
}

// The first of some micro-batches, and all of them, look after look.
NoiseScale look(double pairs, int micro_batches, int looks) {
  NoiseScale scale;
  for (int l = 0; l < looks; ++l) {
    std::vector<double> all(kParameters);
    double first = 0;
    for (int m = 0; m < micro_batches; ++m) {
      const std::vector<double> g = sum_of_pairs(pairs, static_cast<std::uint64_t>(100 * l + m));
      if (m == 0) first = squares(g);
      for (std::size_t i = 0; i < kParameters; ++i) all[i] += g[i];
    }
    const auto e = estimate_noise({first, pairs}, {squares(all), pairs * micro_batches});
    EXPECT_TRUE(e);
    scale.add(*e);
  }
  return scale;
}

TEST(GradientNoise, IsFoundWhereItIsKnown) {
  const double want = kDeviation * kDeviation / (kMean * kMean);  // 625 pairs
  for (const double pairs : {100.0, 1000.0}) {
    const std::optional<double> scale = look(pairs, 8, 200).pairs();
    ASSERT_TRUE(scale);
    EXPECT_NEAR(*scale, want, 0.2 * want) << pairs;
  }
}

TEST(GradientNoise, SeveralSmallGradientsCountAsOneSize) {
  // |g|^2 = n^2 |G|^2 + n S, to the letter: G^2 = 3, S = 50.
  const auto expected = [](double n) { return n * n * 3 + n * 50; };
  for (const double count : {1.0, 4.0}) {
    const auto e = estimate_noise({count * expected(10), count * 10, count}, {expected(80), 80});
    ASSERT_TRUE(e);
    EXPECT_NEAR(e->signal, 3, 1e-9);
    EXPECT_NEAR(e->noise, 50, 1e-9);
  }
}

TEST(GradientNoise, SaysNothingWhereItCannotBeTold) {
  EXPECT_FALSE(estimate_noise({5, 10}, {5, 10})) << "of one size";
  EXPECT_FALSE(estimate_noise({std::numeric_limits<double>::infinity(), 10}, {5, 20}));
  EXPECT_FALSE(estimate_noise({0, 0}, {5, 20})) << "of no pairs";
  NoiseScale scale;
  EXPECT_FALSE(scale.pairs());
  scale.add({-1, 5});
  EXPECT_FALSE(scale.pairs()) << "more noise than there is gradient";
  for (int i = 0; i < 40; ++i) scale.add({1, 5});
  ASSERT_TRUE(scale.pairs());
  EXPECT_NEAR(*scale.pairs(), 5, 2) << "what was is forgotten by and by";
}

}  // namespace
}  // namespace redline::train
