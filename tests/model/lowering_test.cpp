// A configuration asks for the same programs wherever it is read, and the device decides what they compute in.
#include "model/lowering.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "program/planner.h"

namespace redline::model {
namespace {

using namespace redline::testing;
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

TEST(LoweringOptions, AnOptimizerIsChosenByItsName) {
  config::Config c;
  for (const Kind kind : {Kind::cpu, Kind::cuda}) {
    c.optim.name = "adamw";
    c.optim.muon_beta2 = 0.9;
    EXPECT_EQ(lowering_options(c, kind).optimizer, &kAdamW);
    c.optim.name = "muon";
    EXPECT_EQ(lowering_options(c, kind).optimizer, &kNorMuon);
    c.optim.muon_beta2 = 0;
    EXPECT_EQ(lowering_options(c, kind).optimizer, &kMuon);
  }
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
}

config::Config in_fp8(std::vector<std::string> products = {}) {
  config::Config c = with_matmul("fp8");
  c.model.kv_heads = 4, c.model.head_dim = 64;
  c.precision.fp8_products = std::move(products);
  return c;
}

TEST(LoweringOptions, Fp8IsWhatTheListSaysOnAnyDeviceAndElseAllThatCan) {
  for (const Kind kind : {Kind::cuda, Kind::cpu}) {
    const LoweringOptions all = lowering_options(in_fp8(), kind);
    EXPECT_EQ(all.compute, DType::bf16);
    EXPECT_EQ(all.fp8.size(), 12u);
    EXPECT_EQ(lowering_options(in_fp8({"down/weight", "qkv/forward"}), kind).fp8,
              (std::vector<std::string>{"qkv/forward", "down/weight"}))
        << "in the order of the model, whatever the list's";
    EXPECT_TRUE(lowering_options(in_fp8({"none"}), kind).fp8.empty());
    EXPECT_TRUE(lowering_options(with_matmul("bf16"), kind).fp8.empty());
    EXPECT_THROW(lowering_options(in_fp8({"qkv/backward"}), kind), UserError);
    EXPECT_THROW(lowering_options(in_fp8({"none", "qkv/forward"}), kind), UserError);
  }
}

TEST(Fp8Products, SayWhatIsLeftToBf16AndWhy) {
  EXPECT_EQ(in_words(fp8_products(in_fp8())), "12 of 12 products");
  config::Config c = in_fp8();
  for (const std::string& p : fp8_products(c).taken)
    if (p != "out/weight") c.precision.fp8_products.push_back(p);
  EXPECT_EQ(in_words(fp8_products(c)), "11 of 12 products; bf16: out/weight");
  EXPECT_EQ(in_words(fp8_products(c), {"", {{"out/weight", "0.31 ms against 0.33"}}}),
            "11 of 12 products; bf16: out/weight (0.31 ms against 0.33)");
  EXPECT_EQ(in_words(fp8_products(in_fp8({"none"}))), "none of 12 products");
  c = in_fp8();
  c.model.vocab = 272;
  c.precision.head = "fp8";
  EXPECT_EQ(in_words(fp8_products(c)), "12 of 12 products and the head's gradients");

  c = in_fp8();
  c.train.batch_size = 1, c.train.seq_len = 100;  // 100 tokens: no multiple of 16
  EXPECT_EQ(in_words(fp8_products(c)),
            "8 of 12 products; bf16: qkv/weight, out/weight, gate_up/weight, down/weight; gradients of weights: a "
            "micro-batch has 100 tokens, not a multiple of 16");
  c = in_fp8();
  c.model.ffn = 712;  // gate_up has 1424 rows
  const Fp8Products odd = fp8_products(c);
  EXPECT_EQ(odd.taken.size(), 9u);
  EXPECT_EQ(odd.refused, std::vector<std::string>{"down is 256 x 712: not multiples of 16"});
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

// A layer with a window counts the pairs inside of it and of the document, and its cache is a ring.
TEST(Windows, CountTheirOwnPairsAndKeepARing) {
  const config::Model m = tiny_model("gemma3");  // the first of two layers has a window of 5
  LoweringOptions o;
  o.batch = {1, 64, 4};
  o.decode = decode_shape(device::Kind::cpu, 2, 8, 1000, 24);
  const LoweredModel lowered = lower(m, o);
  const double forward_and_backward = 12.0 * static_cast<double>(m.heads * m.head_dim);
  EXPECT_EQ(program::model_flops(lowered.set.find(kFirst)).per_pair,
            (std::map<std::int64_t, double>{{kNoWindow, forward_and_backward}, {5, forward_and_backward}}));
  const auto& caches = lowered.decode.next.caches;
  EXPECT_EQ(lowered.set.at(caches[0].keys).shape[2], 5);
  EXPECT_EQ(lowered.set.at(caches[1].keys).shape[2], 24);
}

}  // namespace
}  // namespace redline::model
