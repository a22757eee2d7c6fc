// The schedules: exact ends, rising warm-up, no jump, and short runs.
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

}  // namespace
}  // namespace redline::optim
