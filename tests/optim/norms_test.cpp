// The norm of all gradients against doubles, on one rank and shared out, what is usual, and sums of squares by tensor.
#include "base/step_state.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

// Both nodes of a norm over all gradients.
void run_norm(Memory& memory, SumSquares<Tensor> sum, GradNorm<Tensor> norm) {
  sum.totals = norm.totals = memory.doubles(kTotals);
  sum.all = sum.gradients.elements();
  run_checked(memory, sum);
  run_checked(memory, norm);
}

UpdateResult norm_of(Memory& memory, const Tensor& gradients, double loss_sum, float inv_pairs, float clip) {
  const Tensor loss = memory.doubles(1), result = memory.object(UpdateResult{});
  *loss.as<double>() = loss_sum;
  const Tensor state = memory.object(StepState{.counts = {.pairs = 1 / static_cast<double>(inv_pairs)}});
  run_norm(memory, {gradients, loss, state}, {{}, result, clip});
  return *result.as<UpdateResult>();
}

TEST(GradNorm, MatchesDoublesAndClips) {
  for (std::int64_t n : {1, 7, 63, 64, 65, 1000, 100003}) {
    Memory memory;
    const Tensor gradients = memory.uniform({n}, -3, 3);
    const Values g = values_of(gradients);
    const double norm = std::sqrt(dot(g, g)) * 0.25;
    for (float clip : {0.0f, static_cast<float>(norm) * 0.1f, static_cast<float>(norm) * 10.0f}) {
      const UpdateResult r = norm_of(memory, gradients, 1.0, 0.25f, clip);
      const double factor = clip > 0 ? std::min(1.0, static_cast<double>(clip) / (norm + 1e-6)) : 1.0;
      EXPECT_NEAR(r.grad_norm, norm, 1e-6 * norm);
      EXPECT_NEAR(r.grad_scale, 0.25 * factor, 1e-6 * factor);
      EXPECT_EQ(r.finite, 1.0f);
    }
  }
}

TEST(GradNorm, OfNoPairsIsZero) {
  Memory memory;
  const Tensor gradients = memory.uniform({1001}, 0, 0), loss = memory.doubles(1);
  const Tensor result = memory.object(UpdateResult{}), state = memory.object(StepState{.counts = {.pairs = 0}});
  run_norm(memory, {gradients, loss, state}, {{}, result, 1.0f});
  const UpdateResult& r = *result.as<UpdateResult>();
  EXPECT_EQ(r.grad_norm, 0.0f);
  EXPECT_EQ(r.grad_scale, 0.0f);
  EXPECT_EQ(r.finite, 1.0f);
}

TEST(GradNorm, SaysWhenSomethingIsNotFinite) {
  Memory memory;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {infinity, -infinity, nan}) {
    const Tensor gradients = memory.uniform({1001});
    EXPECT_EQ(norm_of(memory, gradients, static_cast<double>(bad), 1, 1).finite, 0.0f) << "loss";
    gradients.f32()[1000] = bad;
    EXPECT_EQ(norm_of(memory, gradients, 1.0, 1, 1).finite, 0.0f) << "gradient";
  }
  const Tensor large = memory.uniform({16}, 3e38, 3.1e38);
  EXPECT_EQ(norm_of(memory, large, 1.0, 1, 1).finite, 0.0f) << "a norm beyond float";
  EXPECT_EQ(norm_of(memory, large, 1.0, 1e-3f, 1).finite, 1.0f) << "squares beyond float";
}

// Ranks that hold whole groups of the gradients: their totals add up to those of one that holds all, to the bit.
TEST(GradNorm, TotalsOfShardsAddUpToTheBit) {
  for (const std::int64_t n : {1, 1000, 300007, 1 << 20}) {
    Memory memory;
    const Tensor gradients = memory.uniform({n}, -3, 3), loss = memory.object(2.5);
    const Tensor state = memory.object(StepState{.counts = {.pairs = 7, .stop = 1}});
    const auto totals_of = [&](std::int64_t begin, std::int64_t end) {
      const Tensor totals = memory.doubles(kTotals);
      const Tensor part{gradients.f32() + begin, DType::f32, {end - begin}};
      run_checked(memory, SumSquares<Tensor>{part, loss, state, totals, begin, n});
      return values_of(totals);
    };
    const Values whole = totals_of(0, n);
    for (const int ranks : {2, 3, 7}) {
      const Shards shards{n, ranks};
      Values sum(static_cast<std::size_t>(kTotals), 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Values part = totals_of(shards.begin(rank), shards.end(rank));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      for (std::size_t g = 0; g < static_cast<std::size_t>(kCutGroups); ++g)
        ASSERT_EQ(sum[g], whole[g]) << n << " " << g;
      EXPECT_EQ(sum[static_cast<std::size_t>(kLossTotal)], 2.5 * ranks);
      EXPECT_EQ(sum[static_cast<std::size_t>(kCountTotals)], 7.0 * ranks);
      constexpr std::size_t kStop = kCountTotals + offsetof(StepCounts, stop) / sizeof(double);
      EXPECT_EQ(sum[kStop], ranks) << "asked to stop";
    }
  }
}

// Gradients that come in pieces of whole groups have the totals of all of them at once, to the bit.
TEST(GradNorm, TotalsOfPiecesAreThoseOfAllToTheBit) {
  for (const std::int64_t n : {1000, 300007, 1 << 20}) {
    Memory memory;
    const Tensor gradients = memory.uniform({n}, -3, 3), loss = memory.object(2.5);
    const Tensor state = memory.object(StepState{.counts = {.pairs = 7, .stop = 1}});
    const Tensor whole = memory.doubles(kTotals), pieces = memory.doubles(kTotals);
    run_checked(memory, SumSquares<Tensor>{gradients, loss, state, whole, 0, n});
    std::fill_n(pieces.as<double>(), kTotals, 1e9);  // left from a step before
    const std::int64_t cuts[] = {0, group_begin(100, n), group_begin(101, n), group_begin(900, n), n};
    for (std::size_t i = 0; i + 1 < std::size(cuts); ++i)
      if (cuts[i] < cuts[i + 1])
        run_checked(memory, SumSquares<Tensor>{{gradients.f32() + cuts[i], DType::f32, {cuts[i + 1] - cuts[i]}},
                                               loss,
                                               state,
                                               pieces,
                                               cuts[i],
                                               n,
                                               cuts[i] > 0});
    EXPECT_EQ(values_of(pieces), values_of(whole)) << n;
  }
}

// Norms of one value, then one that is far from it: only updates that are made move what is usual.
TEST(GradNorm, HoldsANormAgainstTheUsualOnceItIsKnown) {
  Memory memory;
  const Tensor gradients = memory.uniform({64}, 1, 2), loss = memory.object(1.0);
  const Tensor state = memory.object(StepState{.counts = {.pairs = 1}}), usual = memory.object(UsualNorm{});
  const Tensor result = memory.object(UpdateResult{});
  const auto norm = [&](float factor) {
    state.as<StepState>()->counts.pairs = 1 / static_cast<double>(factor);
    run_norm(memory, {gradients, loss, state}, {{}, result, 1, usual, 4});
    return *result.as<UpdateResult>();
  };
  const float one = norm_of(memory, gradients, 1.0, 1, 1).grad_norm;
  const double log2 = std::log(2.0), mean = std::log(static_cast<double>(one));
  EXPECT_EQ(norm(1000).finite, 1.0f) << "nothing is usual yet";
  *usual.as<UsualNorm>() = {};
  for (int i = 0; i < static_cast<int>(kUsualLeast); ++i) {
    const UpdateResult r = norm(i % 2 ? 2.0f : 0.5f);
    EXPECT_EQ(r.limit, 0.0f);
    EXPECT_EQ(r.finite, 1.0f);
  }
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean, 1e-5);
  const UsualNorm before = *usual.as<UsualNorm>();
  for (const float factor : {4.1f, 1e6f, std::numeric_limits<float>::quiet_NaN()}) {
    const UpdateResult r = norm(factor);
    EXPECT_EQ(r.finite, 0.0f) << factor;
    EXPECT_EQ(r.grad_scale, 0.0f);
    EXPECT_NEAR(r.limit, 4 * one, 1e-4f * one);
    EXPECT_EQ(usual.as<UsualNorm>()->mean_log, before.mean_log);
    EXPECT_EQ(usual.as<UsualNorm>()->count, before.count);
  }
  EXPECT_EQ(norm(0).finite, 1.0f) << "a norm of zero is no spike";
  EXPECT_EQ(usual.as<UsualNorm>()->mean_log, before.mean_log) << "and has no logarithm";
  const UpdateResult made = norm(2), plain = norm_of(memory, gradients, 1.0, 2, 1);
  EXPECT_EQ(made.grad_norm, plain.grad_norm);
  EXPECT_EQ(made.grad_scale, plain.grad_scale);
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean + log2 / 21, 1e-5);
  for (int i = 0; i < 2000; ++i) norm(2);
  EXPECT_EQ(usual.as<UsualNorm>()->count, kUsualMost);
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean + log2, 1e-5) << "what was is forgotten";
}

TEST(TensorSums, MatchDoublesForTensorsOfAnySizeAndThoseThatAreElsewhere) {
  Memory memory;
  const std::int64_t n = 70003;
  const Tensor x = memory.uniform({n}, -3, 3), minus = memory.uniform({n}, -3, 3);
  const std::vector<std::int64_t> bounds = {0, 1, 4, 7, 64, 64 + 511, 0, 0, 640, 640 + 128 * 4 * 3, 4096, n};
  const auto tensors = static_cast<std::int64_t>(bounds.size() / 2);
  const Tensor where = memory.array(DType::i64, {tensors, 2});
  std::memcpy(where.data, bounds.data(), static_cast<std::size_t>(where.bytes()));
  for (const bool difference : {false, true}) {
    const Tensor sums = memory.doubles(tensors);
    run_checked(memory, TensorSums<Tensor>{x, difference ? minus : Tensor{}, where, sums,
                                           memory.array(DType::f64, {tensors, kTensorSlices})});
    for (std::size_t t = 0; t < static_cast<std::size_t>(tensors); ++t) {
      double want = 0;
      for (std::int64_t i = bounds[2 * t]; i < bounds[2 * t + 1]; ++i) {
        const double v =
            difference ? static_cast<double>(x.f32()[i] - minus.f32()[i]) : static_cast<double>(x.f32()[i]);
        want += v * v;
      }
      EXPECT_NEAR(sums.as<double>()[t], want, 1e-12 * want) << t;
    }
  }
}

}  // namespace
}  // namespace redline::optim
