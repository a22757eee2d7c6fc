// The schedules: exact ends, rising warm-up, no jump, and short runs; what each step counts for in an average.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace redline::optim {
namespace {

config::Optim settings(const std::string& schedule, std::int64_t warmup, double min_lr = 3e-5) {
  config::Optim o;
  o.lr = 3e-4;
  o.min_lr = min_lr;
  o.warmup_steps = warmup;
  o.schedule = schedule;
  return o;
}

// The rate of a schedule in steps: nothing of the training counts.
double learning_rate(const config::Optim& o, std::int64_t step, std::int64_t steps) {
  config::Config c;
  c.optim = o;
  return optim::learning_rate(c, step, steps, 1);
}

constexpr const char* kFalling[] = {"linear", "cosine", "wsd"};

TEST(Schedule, EndsExactlyAtTheFinalRate) {
  for (const char* schedule : kFalling) {
    for (std::int64_t steps : {2, 3, 10, 77, 1000, 12345}) {
      for (std::int64_t warmup : {std::int64_t{0}, std::int64_t{1}, steps / 2, steps - 1}) {
        EXPECT_EQ(learning_rate(settings(schedule, warmup), steps - 1, steps), 3e-5) << schedule << " " << steps;
        EXPECT_EQ(learning_rate(settings(schedule, warmup, 0), steps - 1, steps), 0.0) << schedule << " " << steps;
      }
    }
  }
  EXPECT_EQ(learning_rate(settings("constant", 5), 99, 100), 3e-4);
}

TEST(Schedule, RisesLinearlyToExactlyLr) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    const config::Optim o = settings(schedule, 9);
    for (std::int64_t s = 0; s < 9; ++s) {
      EXPECT_DOUBLE_EQ(learning_rate(o, s, 100), 3e-4 * static_cast<double>(s + 1) / 10);
    }
    EXPECT_EQ(learning_rate(o, 9, 100), 3e-4) << schedule;
  }
}

TEST(Schedule, FallsWithoutJumps) {
  for (const char* schedule : kFalling) {
    const config::Optim o = settings(schedule, 10);
    for (std::int64_t s = 10; s < 999; ++s) {
      const double now = learning_rate(o, s, 1000), next = learning_rate(o, s + 1, 1000);
      EXPECT_LE(next, now) << schedule << " at " << s;
      EXPECT_LT(now - next, 3e-6) << schedule << " at " << s;
    }
  }
}

TEST(Schedule, HasTheStatedShapes) {
  EXPECT_DOUBLE_EQ(learning_rate(settings("linear", 0), 50, 101), (3e-4 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(settings("cosine", 0), 50, 101), (3e-4 + 3e-5) / 2);
  EXPECT_NEAR(learning_rate(settings("cosine", 0), 25, 101), 3e-5 + 2.7e-4 * (0.5 + std::sqrt(0.125)), 1e-12);
  config::Optim wsd = settings("wsd", 0);
  wsd.decay_fraction = 0.25;
  EXPECT_EQ(learning_rate(wsd, 74, 100), 3e-4);
  EXPECT_LT(learning_rate(wsd, 75, 100), 3e-4);
  EXPECT_NEAR(learning_rate(wsd, 99 - 5, 100), 3e-5 + 2.7e-4 * 5 / 25, 1e-12);
  for (double fraction : {0.0, 1.0}) {
    wsd.decay_fraction = fraction;
    EXPECT_EQ(learning_rate(wsd, 0, 100), 3e-4);
    EXPECT_EQ(learning_rate(wsd, 99, 100), 3e-5);
  }
}

TEST(Schedule, DecaysByTheRootWhereAsked) {
  config::Optim wsd = settings("wsd", 5);
  wsd.decay_fraction = 0.25;
  config::Optim root = wsd;
  root.decay_shape = "sqrt";
  for (std::int64_t s = 0; s < 75; ++s) EXPECT_EQ(learning_rate(root, s, 100), learning_rate(wsd, s, 100)) << s;
  for (const std::int64_t passed : {1, 4, 9, 16, 24})
    EXPECT_NEAR(learning_rate(root, 74 + passed, 100), 3e-4 - 2.7e-4 * std::sqrt(static_cast<double>(passed) / 25),
                1e-15);
  EXPECT_EQ(learning_rate(root, 99, 100), 3e-5);
}

TEST(Schedule, TokensAreTheNearestSteps) {
  config::Config c;
  c.train.batch_size = 4;
  c.train.seq_len = 100;
  c.train.accumulate = 5;  // 2000 tokens a step and rank
  c.optim = settings("wsd", 0);
  c.optim.warmup_tokens = 12'900;
  c.optim.decay_tokens = 33'100;
  EXPECT_EQ(warmup_steps(c, 100, 1), 6);
  EXPECT_EQ(warmup_steps(c, 100, 2), 3);
  EXPECT_EQ(decay_steps(c, 100, 1), 17);
  EXPECT_EQ(decay_steps(c, 100, 2), 8);
  config::Config steps = c;
  steps.optim.warmup_tokens = steps.optim.decay_tokens = 0;
  steps.optim.warmup_steps = 6;
  steps.optim.decay_fraction = 0.17;
  for (std::int64_t s = 0; s < 100; ++s)
    EXPECT_EQ(optim::learning_rate(c, s, 100, 1), optim::learning_rate(steps, s, 100, 1)) << s;
  c.optim.decay_tokens = 1'000'000;  // more than the run has: all of it after the warm-up
  EXPECT_EQ(optim::learning_rate(c, 6, 100, 1), 3e-4);
  EXPECT_LT(optim::learning_rate(c, 7, 100, 1), 3e-4);
}

TEST(Schedule, AShareOfTheStepsIsAtLeastOne) {
  config::Config c;
  c.optim = settings("cosine", 0);
  c.optim.warmup_fraction = 0.1;
  EXPECT_EQ(warmup_steps(c, 1000, 1), 100);
  EXPECT_EQ(warmup_steps(c, 26, 1), 3);
  EXPECT_EQ(warmup_steps(c, 3, 1), 1);
  config::Config steps = c;
  steps.optim = settings("cosine", 100);
  for (std::int64_t s = 0; s < 1000; s += 33)
    EXPECT_EQ(optim::learning_rate(c, s, 1000, 2), optim::learning_rate(steps, s, 1000, 2)) << s;
  c.optim.schedule_start = 900;
  EXPECT_EQ(warmup_steps(c, 1000, 1), 10);
}

TEST(Schedule, TokensOfTheWarmUpCountWithTheBatchsRamp) {
  config::Config c;
  c.train.batch_size = 1;
  c.train.seq_len = 100;
  c.train.accumulate = 5;
  c.train.accumulate_from = 1;
  c.train.accumulate_ramp_steps = 4;  // 1, 2, 3, 4, 5, 5 ...
  c.optim.warmup_tokens = 1000;
  EXPECT_EQ(warmup_steps(c, 100, 1), 4);
  c.optim.warmup_tokens = 2000;
  EXPECT_EQ(warmup_steps(c, 100, 1), 6);
  c.optim.schedule_start = 10;
  EXPECT_EQ(warmup_steps(c, 100, 1), 4);
}

TEST(Schedule, ShortRunsStillTrain) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    EXPECT_EQ(learning_rate(settings(schedule, 0), 0, 1), 3e-4) << schedule;
    // A run that ends inside its warm-up only rises.
    EXPECT_DOUBLE_EQ(learning_rate(settings(schedule, 10), 0, 1), 3e-4 / 11) << schedule;
    for (std::int64_t s = 0; s < 5; ++s) {
      EXPECT_DOUBLE_EQ(learning_rate(settings(schedule, 7), s, 5), 3e-4 * static_cast<double>(s + 1) / 8) << schedule;
    }
  }
}

TEST(Schedule, CountsFromWhereItStarts) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    const config::Optim plain = settings(schedule, 7);
    config::Optim later = plain;
    later.schedule_start = 1000;
    for (std::int64_t s = 0; s < 50; ++s)
      EXPECT_EQ(learning_rate(later, 1000 + s, 1050), learning_rate(plain, s, 50)) << schedule << " " << s;
    EXPECT_EQ(learning_rate(later, 900, 1050), learning_rate(plain, 0, 50)) << schedule;
  }
}

TEST(Schedule, RefusesAnUnknownName) { EXPECT_THROW(learning_rate(settings("step", 0), 3, 10), UserError); }

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

TEST(MuonSchedule, MomentumRisesAndStays) {
  config::Optim optim;
  optim.muon_momentum_from = 0.8;
  optim.muon_momentum = 0.9;
  optim.muon_momentum_steps = 10;
  EXPECT_DOUBLE_EQ(muon_momentum(optim, 0), 0.8);
  EXPECT_DOUBLE_EQ(muon_momentum(optim, 5), 0.85);
  EXPECT_DOUBLE_EQ(muon_momentum(optim, 10), 0.9);
  EXPECT_DOUBLE_EQ(muon_momentum(optim, 1000), 0.9);
  optim.muon_momentum_steps = 0;
  EXPECT_DOUBLE_EQ(muon_momentum(optim, 0), 0.9);
}

}  // namespace
}  // namespace redline::optim
