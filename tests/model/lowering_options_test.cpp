// A configuration asks for the same programs wherever it is read, and the device decides what they compute in.
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/lowering.h"

namespace redline::model {
namespace {

using device::Kind;

config::Config with_matmul(const char* matmul) {
  config::Config c;
  c.precision.matmul = matmul;
  return c;
}

TEST(LoweringOptions, FollowTheConfiguration) {
  config::Config c;
  c.train.batch_size = 3;
  c.train.seq_len = 7;
  c.data.max_segments = 5;
  c.train.accumulate = 2;
  c.train.seed = 11;
  c.optim.beta1 = 0.5;
  c.kernels.graphs = "off";
  for (const Kind kind : {Kind::cpu, Kind::cuda}) {
    const LoweringOptions o = lowering_options(c, kind);
    EXPECT_EQ(o.batch, (data::BatchShape{3, 7, 5}));
    EXPECT_EQ(o.batch, batch_shape(c));
    EXPECT_TRUE(o.training);
    EXPECT_TRUE(o.accumulate);
    EXPECT_FALSE(o.logits);
    EXPECT_EQ(o.optim, c.optim);
    EXPECT_EQ(o.seed, 11u);
    EXPECT_FALSE(o.execution.graphs);
  }
  c.train.accumulate = 1;
  EXPECT_FALSE(lowering_options(c, Kind::cpu).accumulate);
}

TEST(LoweringOptions, TheCpuComputesInFp32WhateverIsAsked) {
  for (const char* matmul : {"bf16", "fp8", "tf32", "fp32"}) {
    const LoweringOptions o = lowering_options(with_matmul(matmul), Kind::cpu);
    EXPECT_EQ(o.compute, DType::f32) << matmul;
    EXPECT_FALSE(o.execution.tf32) << matmul;
  }
}

TEST(LoweringOptions, ACardComputesInWhatIsAskedOrSaysThatItCannot) {
  EXPECT_EQ(lowering_options(with_matmul("bf16"), Kind::cuda).compute, DType::bf16);
  EXPECT_EQ(lowering_options(with_matmul("fp32"), Kind::cuda).compute, DType::f32);
  EXPECT_FALSE(lowering_options(with_matmul("fp32"), Kind::cuda).execution.tf32);
  EXPECT_EQ(lowering_options(with_matmul("tf32"), Kind::cuda).compute, DType::f32);
  EXPECT_TRUE(lowering_options(with_matmul("tf32"), Kind::cuda).execution.tf32);
  EXPECT_THROW(lowering_options(with_matmul("fp8"), Kind::cuda), UserError);
}

TEST(LoweringOptions, MicroBatchesThatACardsKernelsDoNotTakeAreRefused) {
  config::Config c;
  c.train.seq_len = 1000;
  for (const std::int64_t segments : {32, 4000}) {  // the tokens count, or the documents
    c.data.max_segments = segments;
    c.train.batch_size = most_rows(c, Kind::cuda);
    EXPECT_NO_THROW(lowering_options(c, Kind::cuda)) << segments;
    c.train.batch_size += 1;
    EXPECT_THROW(lowering_options(c, Kind::cuda), UserError) << segments;
    EXPECT_NO_THROW(lowering_options(c, Kind::cpu)) << segments;
  }
}

TEST(LoweringOptions, BitsThatRepeatLeaveAttentionToUs) {
  config::Config c;
  EXPECT_FALSE(lowering_options(c, Kind::cuda).execution.deterministic);
  EXPECT_TRUE(lowering_options(c, Kind::cuda).attention_workspace);
  c.kernels.deterministic = true;
  for (const char* attention : {"auto", "hopper", "flash", "reference"}) {
    c.kernels.attention = attention;
    EXPECT_TRUE(lowering_options(c, Kind::cuda).execution.deterministic) << attention;
    EXPECT_EQ(lowering_options(c, Kind::cuda).execution.attention, attention);
    EXPECT_FALSE(lowering_options(c, Kind::cuda).attention_workspace) << attention;
  }
  c.kernels.attention = "cudnn";
  EXPECT_THROW(lowering_options(c, Kind::cuda), UserError);
  EXPECT_NO_THROW(lowering_options(c, Kind::cpu));
}

}  // namespace
}  // namespace redline::model
