// The average of weights against doubles, when it is left alone, and what each step counts for; sums of squares by
// tensor.
#include "optim/adamw.h"
#include "optim/cpu/kernels.h"
#include "optim/schedule.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

TEST(Average, MatchesDoublesAndBeginsWithTheWeights) {
  for (const std::int64_t n : {1, 5, 16384, 40001})
    for (const float share : {1.0f, 0.25f, 1e-3f}) {
      Memory memory;
      const Tensor p = memory.uniform({n}), average = memory.uniform({n});
      Values want = values_of(average);
      const Values weights = values_of(p);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(share) * (weights[i] - want[i]);
      run_checked(memory,
                  Average<Tensor>{p, average, memory.object(StepState{.average = share}),
                                  memory.object(UpdateResult{.finite = 1})},
                  kRun);
      const Values got = values_of(average);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6);
      if (share == 1) {
        EXPECT_EQ(got, weights) << "to the bit";
      }
    }
}

TEST(Average, IsLeftAloneWhereTheUpdateWasNotMade) {
  Memory memory;
  const Tensor p = memory.uniform({1001}), average = memory.uniform({1001});
  const Values before = values_of(average);
  run_checked(memory,
              Average<Tensor>{p, average, memory.object(StepState{.average = 0.5f}), memory.object(UpdateResult{})},
              kRun);
  EXPECT_EQ(values_of(average), before);
}

TEST(Exchange, BothChangePlaces) {
  Memory memory;
  const Tensor p = memory.uniform({40001}), average = memory.uniform({40001});
  const Values weights = values_of(p), means = values_of(average);
  run_checked(memory, Exchange<Tensor>{p, average}, kRun);
  EXPECT_EQ(values_of(p), means);
  EXPECT_EQ(values_of(average), weights);
}

// A number that stands for all weights: what the shares make of 1, 2, 3, ... after so many steps.
double averaged(const config::Train& train, std::int64_t made, std::int64_t steps) {
  double average = 0;
  for (std::int64_t step = 0; step < made; ++step)
    average += average_share(train, step, steps) * (static_cast<double>(step + 1) - average);
  return average;
}

TEST(AverageShare, EmaIsTheMeanUntilItReachesBackNoFurther) {
  config::Train train;
  train.average = "ema";
  train.average_steps = 10;
  EXPECT_EQ(average_share(train, 0, 100), 1);
  for (const std::int64_t made : {1, 4, 10}) EXPECT_NEAR(averaged(train, made, 100), 0.5 * (made + 1), 1e-12);
  EXPECT_EQ(average_share(train, 50, 100), 0.1);
  EXPECT_NEAR(averaged(train, 1000, 1000), 1000 - 9, 1e-9) << "a reach of ten steps lags by nine";
}

TEST(AverageShare, LastIsThePlainMeanOfTheLastSteps) {
  config::Train train;
  train.average = "last";
  train.average_steps = 10;
  for (const std::int64_t made : {1, 50, 90, 91}) EXPECT_EQ(averaged(train, made, 100), made) << "the weights";
  EXPECT_NEAR(averaged(train, 94, 100), 92.5, 1e-12);
  EXPECT_NEAR(averaged(train, 100, 100), 95.5, 1e-12);
  EXPECT_NEAR(averaged(train, 4, 4), 2.5, 1e-12) << "a run shorter than its reach";
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
    run_checked(memory,
                TensorSums<Tensor>{x, difference ? minus : Tensor{}, where, sums,
                                   memory.array(DType::f64, {tensors, kTensorSlices})},
                kRun);
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
