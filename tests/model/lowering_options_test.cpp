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
  for (const char* matmul : {"bf16", "tf32", "fp32"}) {
    const LoweringOptions o = lowering_options(with_matmul(matmul), Kind::cpu);
    EXPECT_EQ(o.compute, DType::f32) << matmul;
    EXPECT_EQ(o.products.math, ops::Math::full) << matmul;
  }
}

TEST(LoweringOptions, ACardComputesInWhatIsAsked) {
  EXPECT_EQ(lowering_options(with_matmul("bf16"), Kind::cuda).compute, DType::bf16);
  EXPECT_EQ(lowering_options(with_matmul("fp32"), Kind::cuda).compute, DType::f32);
  EXPECT_EQ(lowering_options(with_matmul("fp32"), Kind::cuda).products.math, ops::Math::full);
  EXPECT_EQ(lowering_options(with_matmul("tf32"), Kind::cuda).compute, DType::f32);
  EXPECT_EQ(lowering_options(with_matmul("tf32"), Kind::cuda).products.math, ops::Math::tf32);
  EXPECT_EQ(lowering_options(with_matmul("tf32"), Kind::cuda).attention.math, ops::Math::tf32);
  for (const Kind kind : {Kind::cuda, Kind::cpu})  // where the CPU is the truth for cards
    EXPECT_EQ(lowering_options(with_matmul("fp8"), kind).compute, DType::bf16);
}

TEST(LoweringOptions, BitsThatRepeatLeaveAttentionToUs) {
  config::Config c;
  EXPECT_EQ(lowering_options(c, Kind::cuda).products.bits, ops::Bits::free);
  EXPECT_EQ(lowering_options(c, Kind::cuda).attention.by, ops::AttentionBy::automatic);
  c.kernels.deterministic = true;
  for (const char* attention : {"auto", "hopper", "flash", "reference"}) {
    c.kernels.attention = attention;
    const LoweringOptions o = lowering_options(c, Kind::cuda);
    EXPECT_EQ(o.products.bits, ops::Bits::repeat) << attention;
    EXPECT_EQ(o.attention.bits, ops::Bits::repeat) << attention;
    EXPECT_EQ(name_of(o.attention.by), attention);
  }
  c.kernels.attention = "cudnn";
  EXPECT_THROW(lowering_options(c, Kind::cuda), UserError);
  EXPECT_NO_THROW(lowering_options(c, Kind::cpu));
}

}  // namespace
}  // namespace redline::model
