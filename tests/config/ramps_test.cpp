// The ramps of a run's first steps: held against plain sums, and what does not make one is refused.
#include "config/ramps.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/load.h"
#include "testing/says.h"

namespace redline::config {
namespace {

Train growing(std::int64_t from, std::int64_t to, std::int64_t steps) {
  Train t;
  t.accumulate = to;
  t.accumulate_from = from;
  t.accumulate_ramp_steps = steps;
  return t;
}

std::string error_with(const std::vector<std::string>& overrides) {
  return testing::error_of([&] { load({.file = "", .preset = "quick", .overrides = overrides}); });
}

struct Refused {
  std::vector<std::string> words;
  std::vector<std::string_view> parts;  // of the sentence
};
void expect_refused(const std::vector<Refused>& cases) {
  for (const Refused& c : cases)
    for (const std::string_view part : c.parts) EXPECT_TRUE(testing::says(error_with(c.words), {part}));
}

TEST(Ramps, WithoutOneEveryStepIsTheSame) {
  const Train t = growing(0, 3, 0);
  for (const std::int64_t step : {0, 1, 7, 1000}) {
    EXPECT_EQ(micro_batches(t, step), 3);
    EXPECT_EQ(micro_batches_before(t, step), 3 * step);
    EXPECT_EQ(longest_document(t, step), t.seq_len);
  }
  EXPECT_EQ(steps_within(t, 8), 2);
  EXPECT_EQ(nearest_steps(t, 7.4), 2);
  EXPECT_EQ(nearest_steps(t, 7.5), 3);
  EXPECT_EQ(ramps_in_words(t), "");
}

TEST(Ramps, MicroBatchesRiseInALineAndAddUp) {
  for (const auto& [from, to, steps] : {std::tuple{1, 8, 20}, std::tuple{2, 3, 7}, std::tuple{1, 64, 5},
                                        std::tuple{3, 50, 47}, std::tuple{1, 2, 1}, std::tuple{1, 1000, 333}}) {
    const Train t = growing(from, to, steps);
    EXPECT_EQ(micro_batches(t, 0), from);
    EXPECT_EQ(micro_batches(t, steps), to);
    std::int64_t sum = 0;
    for (std::int64_t s = 0; s < steps + 10; ++s) {
      const double line = from + static_cast<double>((to - from) * std::min<std::int64_t>(s, steps)) / steps;
      EXPECT_LE(std::abs(static_cast<double>(micro_batches(t, s)) - line), 0.5) << s;
      ASSERT_EQ(micro_batches_before(t, s), sum) << s;
      ASSERT_EQ(steps_within(t, static_cast<double>(sum)), s);
      ASSERT_EQ(steps_within(t, static_cast<double>(sum) + 0.5), s);
      const auto next = static_cast<double>(micro_batches(t, s));
      EXPECT_EQ(nearest_steps(t, static_cast<double>(sum) + 0.49 * next), s);
      EXPECT_EQ(nearest_steps(t, static_cast<double>(sum) + 0.51 * next), s + 1);
      sum += micro_batches(t, s);
    }
  }
}

TEST(Ramps, ALongOneIsCountedWithoutWalkingIt) {
  const Train t = growing(1, 1 << 20, 1 << 30);
  EXPECT_EQ(micro_batches(t, 1 << 29), (1 << 19) + 1);  // half a micro-batch, rounded up
  const std::int64_t all = micro_batches_before(t, 1 << 30);
  const double line = 0x1p30 * ((1 << 20) + 1) / 2;
  EXPECT_NEAR(static_cast<double>(all), line, 0x1p30);
  EXPECT_EQ(steps_within(t, static_cast<double>(all)), 1 << 30);
  EXPECT_EQ(steps_within(t, static_cast<double>(all) + 0x1p20), (1 << 30) + 1);
  EXPECT_EQ(steps_within(t, static_cast<double>(all) - 1), (1 << 30) - 1);
}

TEST(Ramps, LengthsRiseInStepsOf64OrOfTheFirst) {
  Train t;
  t.seq_len = 1000;
  t.seq_len_from = 128;
  t.seq_len_ramp_steps = 100;
  EXPECT_EQ(longest_document(t, 0), 128);
  EXPECT_EQ(longest_document(t, 3), 128);   // 154
  EXPECT_EQ(longest_document(t, 4), 192);   // 163
  EXPECT_EQ(longest_document(t, 99), 960);  // 991
  EXPECT_EQ(longest_document(t, 100), 1000);
  EXPECT_EQ(longest_document(t, 1'000'000), 1000);
  std::int64_t before = 0;
  for (std::int64_t s = 0; s < 97; ++s) {
    EXPECT_EQ(longest_document(t, s) % 64, 0) << s;
    EXPECT_GE(longest_document(t, s), before);
    before = longest_document(t, s);
  }
  t.seq_len_from = 50;
  EXPECT_EQ(longest_document(t, 0), 50);
  EXPECT_EQ(longest_document(t, 5), 100);  // 97.5
}

TEST(Ramps, AreSaidInWords) {
  Train t = growing(2, 8, 100);
  t.seq_len_from = 128;
  t.seq_len_ramp_steps = 500;
  EXPECT_TRUE(testing::says(ramps_in_words(t),
                            {"from 2 to 8 micro-batches", "100 steps", "from 128 to 256 tokens", "500 steps"}));
}

TEST(Ramps, WhatDoesNotMakeOneIsRefused) {
  const std::vector<std::string> ramp = {"train.accumulate=4", "train.accumulate_from=2",
                                         "train.accumulate_ramp_steps=9"};
  expect_refused({
      {{"train.accumulate=4", "train.accumulate_from=2"}, {"train.accumulate_from", "both"}},
      {{"train.accumulate_ramp_steps=2"}, {"train.accumulate_ramp_steps", "both"}},
      {{"train.accumulate=4", "train.accumulate_from=5", "train.accumulate_ramp_steps=9"},
       {"train.accumulate_from (5)", "train.accumulate (4)"}},
      {{ramp[0], ramp[1], ramp[2], "train.batch_size=auto"}, {"train.batch_size", "number"}},
      {{"train.seq_len_from=64"}, {"train.seq_len_from", "both"}},
      {{"train.seq_len=128", "train.seq_len_from=128", "train.seq_len_ramp_steps=9"},
       {"train.seq_len_from (128)", "train.seq_len (128)"}},
      {{"train.seq_len=256", "train.seq_len_from=64", "train.seq_len_ramp_steps=9", "data.max_segments=4"},
       {"256 tokens", "4 documents", "data.max_segments (4)", "8 or more"}},
  });
  EXPECT_EQ(
      error_with({"train.seq_len=256", "train.seq_len_from=64", "train.seq_len_ramp_steps=9", "data.max_segments=5",
                  "train.accumulate=4", "train.accumulate_from=1", "train.accumulate_ramp_steps=1"}),
      "no error");
}

TEST(ScheduleKeys, ThatSayTwoThingsOrNothingAreRefused) {
  expect_refused({
      {{"optim.warmup_steps=3", "optim.warmup_tokens=1000"}, {"optim.warmup_steps (3)", "optim.warmup_tokens (1000)"}},
      {{"optim.schedule=cosine", "optim.decay_tokens=1000"}, {"optim.decay_tokens (1000)", "optim.schedule = \"wsd\""}},
      {{"optim.schedule=linear", "optim.decay_shape=sqrt"}, {"optim.decay_shape = \"sqrt\"", "optim.schedule"}},
      {{"precision.matmul=fp8", "precision.head=fp8", "train.z_loss=0.1"}, {"train.z_loss (0.1)", "0.01"}},
  });
  EXPECT_EQ(error_with({"optim.warmup_steps=0", "optim.warmup_tokens=1000", "optim.schedule=wsd",
                        "optim.decay_tokens=1000", "optim.decay_shape=sqrt", "train.z_loss=1e-4"}),
            "no error");
}

}  // namespace
}  // namespace redline::config
