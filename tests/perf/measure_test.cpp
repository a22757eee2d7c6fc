// A measurement says what a step reaches, or why there is none; nothing stays on the device.
#include "perf/measure.h"

#include <gtest/gtest.h>

#include "testing/says.h"
#include "train/memory_advice.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

using testing::says;

Measured measured(const std::vector<std::string>& keys, double seconds = 0.1) {
  device::CpuDevice device(1);
  MeasureOptions options;
  options.seconds = seconds;
  options.peak_flops = 1e12;
  const Measured m = measure(testing::tiny_run(keys), device, options);
  EXPECT_EQ(device.allocated_bytes(), 0);
  return m;
}

class MeasureOf : public ::testing::TestWithParam<std::string> {};

TEST_P(MeasureOf, SaysWhatAStepReaches) {
  const Measured m = measured({"train.accumulate=" + GetParam()});
  ASSERT_TRUE(m.done()) << m.problem;
  EXPECT_GT(m.step_ms, 0);
  EXPECT_GE(m.steps, 2);
  EXPECT_GT(m.mfu, 0);
  EXPECT_GT(m.noise, 0);
  EXPECT_FALSE(m.joules_per_token.has_value());
  // 128 slots a micro-batch, nearly all of them real.
  const double slots = 128 * std::stod(GetParam());
  const double tokens = m.tokens_per_s * m.step_ms / 1e3;
  EXPECT_GT(tokens, 0.7 * slots);
  EXPECT_LE(tokens, slots);
  EXPECT_GE(m.memory, train::memory_needed(testing::tiny_run({"train.accumulate=" + GetParam()}), device::Kind::cpu));
}
INSTANTIATE_TEST_SUITE_P(MicroBatches, MeasureOf, ::testing::Values("1", "2", "5"));

TEST(Measure, PaddingIsNoTokens) {
  const Measured padded = measured({"train.seq_len=512", "data.packing=pad"});
  const Measured packed = measured({"train.seq_len=512", "data.packing=pack"});
  const double padded_tokens = padded.tokens_per_s * padded.step_ms,
               packed_tokens = packed.tokens_per_s * packed.step_ms;
  EXPECT_LT(padded_tokens, 0.7 * packed_tokens);
}

// Rows of one document differ in length: a factor between two measurements must not come from that.
TEST(Measure, TokensOfAStepDoNotHangOnHowLongItIsTimed) {
  const auto tokens = [](double seconds) {
    const Measured m = measured({"train.seq_len=512", "data.packing=pad"}, seconds);
    return m.tokens_per_s * m.step_ms;
  };
  EXPECT_NEAR(tokens(0.01) / tokens(0.3), 1, 1e-9);
}

TEST(Measure, WhatCannotBeIsAProblemAndNoError) {
  const Measured large = measured({"model.hidden=65536", "model.ffn=262144", "model.heads=512", "model.head_dim=128"});
  EXPECT_TRUE(says(large.problem, {"GiB are free"}));
  const Measured data = measured({"data.train=no_such_file.txt"});
  EXPECT_TRUE(says(data.problem, {"no_such_file.txt"}));
}

TEST(Measure, ASignalDropsIt) {
  device::CpuDevice device(1);
  const StopFlag stop = 2;
  MeasureOptions options;
  options.stop = &stop;
  EXPECT_THROW(measure(testing::tiny_run(), device, options), Interrupted);
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(Measure, TakesTheBatchOfThePlanWhereItIsAutomatic) {
  const Measured m = measured({"train.batch_size=auto"});
  EXPECT_TRUE(m.done()) << m.problem;
}

}  // namespace
}  // namespace redline::perf
