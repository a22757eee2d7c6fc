// Whole models with products in eight bits, on the CPU: which products there are, that plans have no fault and are
// smaller, that gradients are near those of fp32, and that recompute, packing, accumulation and a skipped update hold
// as ever.
#include "model/fp8_linears.h"

#include <cmath>
#include <map>
#include <set>

#include "base/small_floats.h"
#include "model/tiny_fp8.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using device::Kind;
using program::Program;
using program::Recompute;
using program::ValueId;
using testing::array_of;
using testing::batch_of;
using testing::fp8_options;
using testing::random_document;
using testing::tiny_fp8_model;

constexpr data::BatchShape kShape{.rows = 2, .seq_len = 24, .max_segments = 4};

data::Batch some_batch(std::int64_t vocab, std::uint64_t key = 0) {
  return batch_of(kShape, {random_document(10 * key + 1, 13, vocab), random_document(10 * key + 2, 1, vocab),
                           random_document(10 * key + 3, 20, vocab), random_document(10 * key + 4, 2, vocab)});
}

template <class Op>
std::int64_t count(const Program& p) {
  return std::ranges::count_if(p.nodes, [](const program::Node& n) { return std::holds_alternative<Op>(n.op); });
}

// A tiny model in eight bits at work: weights drawn, a batch in place, scales found.
struct Made : Engine {
  Made(const config::Model& m, const LoweringOptions& o, device::Device& d) : Engine(m, o, d) {
    initialise(3);
    upload(some_batch(m.vocab));
    set_step(0, 1e-3, 32, 0);
    if (!o.fp8.empty()) testing::find_scales(*this);
  }
  std::vector<float> losses() {
    std::vector<float> all(static_cast<std::size_t>(batch_shape().tokens()));
    executor().read(lowered().losses, all);
    return all;
  }
};

TEST(Fp8Candidates, AreTheThreeProductsOfEveryLinearOfABlock) {
  const config::Model m = tiny_fp8_model("llama");
  const Fp8Candidates found = fp8_candidates(family_of(m).table(m), 48);
  std::set<std::string> expected;
  for (const char* linear : {"qkv", "out", "gate_up", "down"})
    for (const char* product : {"forward", "input", "weight"}) expected.insert(fmt::format("{}/{}", linear, product));
  EXPECT_EQ(std::set<std::string>(found.products.begin(), found.products.end()), expected);
  EXPECT_EQ(found.products.size(), expected.size());
  EXPECT_TRUE(found.refused.empty());
}

TEST(Fp8Candidates, RefuseWhatIsNoMultipleOfSixteen) {
  config::Model m = tiny_fp8_model("llama");
  m.ffn = 37;
  const Fp8Candidates found = fp8_candidates(family_of(m).table(m), 46);
  EXPECT_EQ(found.products, (std::vector<std::string>{"qkv/forward", "qkv/input", "out/forward", "out/input"}));
  ASSERT_EQ(found.refused.size(), 3u);
  EXPECT_NE(found.refused[0].find("gate_up"), std::string::npos) << found.refused[0];
  EXPECT_NE(found.refused[1].find("down"), std::string::npos) << found.refused[1];
  EXPECT_NE(found.refused[2].find("46 tokens"), std::string::npos) << found.refused[2];
}

class Fp8Models : public ::testing::TestWithParam<std::string> {
 protected:
  Fp8Models() : model_(tiny_fp8_model(GetParam())) {}
  LoweringOptions options(Kind kind = Kind::cpu) const { return fp8_options(model_, kShape, kind); }
  config::Model model_;
  device::CpuDevice device_{2};
};

TEST_P(Fp8Models, PlansHaveNoFault) {
  model_.layers = 3;
  for (const Kind kind : {Kind::cpu, Kind::cuda}) {
    for (const double dropout : {0.0, 0.2}) {
      for (const auto recompute : {Recompute::none, Recompute::mlp, Recompute::block}) {
        model_.dropout = dropout;
        LoweringOptions o = options(kind);
        o.recompute = recompute;
        const LoweredModel lowered = lower(model_, o);
        EXPECT_EQ(program::check_plan(lowered.set), std::vector<std::string>{})
            << static_cast<int>(kind) << " " << dropout << " " << static_cast<int>(recompute);
      }
    }
  }
}

TEST_P(Fp8Models, TrainingTakesEveryProductAndNothingElseTakesOne) {
  LoweringOptions o = options();
  o.decode = decode_shape(Kind::cpu, 2, 8, 8, 24);
  const LoweredModel lowered = lower(model_, o);
  std::set<std::string_view> seen;
  for (const Program& p : lowered.set.programs) {
    seen.insert(p.name);
    if (p.name == kFirst || p.name == kAccumulate) {
      EXPECT_EQ(count<ops::Fp8Product<ValueId>>(p), 4 * 3 * model_.layers) << p.name;
      EXPECT_EQ(count<ops::Linear<ValueId>>(p), 0) << p.name;
      EXPECT_EQ(count<ops::LinearInputGrad<ValueId>>(p), 0) << p.name;
      EXPECT_EQ(count<ops::LinearWeightGrad<ValueId>>(p), 0) << p.name;
    } else if (p.name != kUpdate && p.name != kRefresh) {
      EXPECT_FALSE(testing::has_fp8_node(p)) << p.name;
    }
  }
  for (const std::string_view name : {kFirst, kAccumulate, kUpdate, kRefresh, kEvaluate, kLogits, kPrefill, kDecode})
    EXPECT_TRUE(seen.contains(name)) << name;
}

TEST_P(Fp8Models, OnlyTheProductsOfTheListAreTaken) {
  for (const auto& [product, forward, input, weight] :
       {std::tuple{"qkv/forward", 1, 0, 0}, {"out/input", 0, 1, 0}, {"down/weight", 0, 0, 1}}) {
    LoweringOptions o = options();
    o.fp8 = {product};
    const LoweredModel lowered = lower(model_, o);
    EXPECT_EQ(program::check_plan(lowered.set), std::vector<std::string>{}) << product;
    for (const std::string_view name : {kFirst, kAccumulate}) {
      const Program& p = lowered.set.find(name);
      EXPECT_EQ(count<ops::Fp8Product<ValueId>>(p), model_.layers) << product;
      EXPECT_EQ(count<ops::Linear<ValueId>>(p), (4 - forward) * model_.layers) << product;
      EXPECT_EQ(count<ops::LinearInputGrad<ValueId>>(p), (4 - input) * model_.layers) << product;
      EXPECT_EQ(count<ops::LinearWeightGrad<ValueId>>(p), (4 - weight) * model_.layers) << product;
    }
    // Only copies that a product reads are kept: a weight by rows, by columns, or not at all.
    std::int64_t copies = 0;
    for (const program::Value& v : lowered.set.values) copies += v.role == program::Role::working && is_fp8(v.dtype);
    EXPECT_EQ(copies, weight ? 0 : model_.layers) << product;
  }
}

TEST_P(Fp8Models, ACardKeepsLessForTheBackwardPass) {
  model_.layers = 6;
  model_.hidden = 256;
  model_.head_dim = 64;
  model_.ffn = 512;
  const data::BatchShape shape{.rows = 4, .seq_len = 256, .max_segments = 4};
  for (const auto recompute : {Recompute::none, Recompute::mlp}) {
    LoweringOptions in_fp8 = fp8_options(model_, shape, Kind::cuda);
    in_fp8.recompute = recompute;
    LoweringOptions in_bf16 = in_fp8;
    in_bf16.fp8.clear();
    const LoweredModel eight = lower(model_, in_fp8), sixteen = lower(model_, in_bf16);
    ASSERT_EQ(eight.set.programs[0].name, kFirst);
    EXPECT_LT(eight.set.memory.transient_by_program[0], sixteen.set.memory.transient_by_program[0])
        << static_cast<int>(recompute);
  }
}

// Cosines of the angles between gradients in eight bits and in fp32, by tensor.
class Fp8Gradients : public Fp8Models {
 protected:
  Fp8Gradients() { model_.init_std = 0.08; }  // what products give is then as large as in a model of the usual width

  std::map<std::string, double> cosines(const std::vector<std::string>& products) {
    LoweringOptions with = options(), without = with;
    with.fp8 = products;
    without.compute = DType::f32;
    without.fp8.clear();
    Made in_fp8(model_, with, device_), in_fp32(model_, without, device_);
    for (Made* engine : {&in_fp8, &in_fp32}) engine->micro_step(true);
    EXPECT_NEAR(in_fp8.loss_sum() / in_fp32.loss_sum(), 1, 0.01);
    const std::vector<float> got = array_of(in_fp8, optim::kGradients), want = array_of(in_fp32, optim::kGradients);
    std::map<std::string, double> found;
    for (std::size_t row = 0; row < in_fp8.table().size(); ++row) {
      const auto first = static_cast<std::size_t>(in_fp8.layout().offsets[row]);
      double gw = 0, gg = 0, ww = 0;
      for (std::size_t i = first; i < first + static_cast<std::size_t>(in_fp8.table()[row].shape.elements()); ++i) {
        gw += static_cast<double>(got[i]) * static_cast<double>(want[i]);
        gg += static_cast<double>(got[i]) * static_cast<double>(got[i]);
        ww += static_cast<double>(want[i]) * static_cast<double>(want[i]);
      }
      EXPECT_NEAR(std::sqrt(gg / ww), 1, 0.1) << in_fp8.table()[row].name;
      found[in_fp8.table()[row].name] = gw / std::sqrt(gg * ww);
    }
    return found;
  }
};

// A QK-norm brings small queries and keys up to 1: attention is sharper there, and sharper for errors as well.
TEST_P(Fp8Gradients, AreNearThoseOfFp32) {
  model_.layers = 1;  // every product on the way adds its 6%
  for (const auto& [name, cosine] : cosines(options().fp8)) EXPECT_GT(cosine, model_.qk_norm ? 0.98 : 0.99) << name;
}

// What is taken from the wrong node, turned over wrongly or scaled twice shows here.
TEST_P(Fp8Gradients, EachProductAloneMovesThemLittle) {
  for (const std::string& product : options().fp8) {
    double least = 1;
    for (const auto& [name, cosine] : cosines({product})) {
      EXPECT_GT(cosine, model_.qk_norm ? 0.98 : 0.995) << product << ": " << name;
      least = std::min(least, cosine);
    }
    EXPECT_LT(least, 0.9998) << product << " was not cast";
  }
}

TEST_P(Fp8Models, ComputingAgainChangesNoBit) {
  model_.layers = 3;
  for (const double dropout : {0.0, 0.2}) {
    model_.dropout = dropout;
    std::vector<float> losses, gradients, scales;
    for (const auto what : {Recompute::none, Recompute::mlp, Recompute::block}) {
      LoweringOptions o = options();
      o.recompute = what;
      Made engine(model_, o, device_);
      for (const bool first : {true, false}) {
        engine.executor().poison_transients();
        engine.micro_step(first);
      }
      const std::vector<float> now = array_of(engine, optim::kGradients);
      engine.update();  // what was recorded shows in the scales
      if (what == Recompute::none) {
        losses = engine.losses(), gradients = now, scales = array_of(engine, "fp8 gradient scales");
      } else {
        EXPECT_EQ(engine.losses(), losses);
        EXPECT_EQ(now, gradients);
        EXPECT_EQ(array_of(engine, "fp8 gradient scales"), scales);
      }
    }
  }
}

TEST_P(Fp8Models, NoNodeReadsWhatNothingWrote) {
  Made engine(model_, options(), device_);
  std::vector<float> seen[2];
  for (const bool poisoned : {false, true}) {
    if (poisoned) engine.executor().poison_transients();
    engine.micro_step(true);
    if (poisoned) engine.executor().poison_transients();
    engine.micro_step(false);
    seen[poisoned] = array_of(engine, optim::kGradients);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST_P(Fp8Models, TheSameBitsOnAnyNumberOfThreads) {
  std::vector<float> parameters[3];
  for (const int threads : {1, 2, 3}) {
    device::CpuDevice device(threads);
    Made engine(model_, options(), device);
    engine.micro_step(true);
    engine.update();
    parameters[threads - 1] = array_of(engine, optim::kParameters);
  }
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_EQ(parameters[0], parameters[2]);
}

// Scales are a tensor's, but they change in the update only: within a step a document cannot be seen through them.
TEST_P(Fp8Models, DocumentsCannotSeeEachOther) {
  Made engine(model_, options(), device_);
  testing::expect_documents_apart(engine, some_batch(model_.vocab));
}

// What is measured and written does not know of eight bits.
TEST_P(Fp8Models, EvaluationIsThatOfBf16) {
  LoweringOptions plain = options();
  plain.fp8.clear();
  Made in_fp8(model_, options(), device_), in_bf16(model_, plain, device_);
  const std::vector<float> scales = array_of(in_fp8, "fp8 input scales"), recorded = array_of(in_fp8, "fp8 input amax");
  EXPECT_EQ(in_fp8.evaluate(), in_bf16.evaluate());
  EXPECT_EQ(in_fp8.logits(), in_bf16.logits());
  EXPECT_EQ(array_of(in_fp8, "fp8 input scales"), scales);
  EXPECT_EQ(array_of(in_fp8, "fp8 input amax"), recorded) << "nothing is recorded";
  in_fp8.micro_step(true);
  EXPECT_NE(array_of(in_fp8, "fp8 input amax"), recorded);
}

TEST_P(Fp8Models, WhatIsRecordedIsTheLargestOfAllMicroBatches) {
  Made engine(model_, options(), device_);
  std::vector<float> apart[2];
  const data::Batch batches[] = {some_batch(model_.vocab, 1), some_batch(model_.vocab, 2)};
  for (const int i : {0, 1}) {
    engine.executor().clear(engine.lowered().at("fp8 gradient amax"));
    engine.upload(batches[i]);
    engine.micro_step(true);
    apart[i] = array_of(engine, "fp8 gradient amax");
  }
  engine.executor().clear(engine.lowered().at("fp8 gradient amax"));
  for (const int i : {0, 1}) {
    engine.upload(batches[i]);
    engine.micro_step(i == 0);
  }
  const std::vector<float> together = array_of(engine, "fp8 gradient amax");
  for (std::size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i], std::max(apart[0][i], apart[1][i])) << i;
}

// A gradient that is not finite: the update is not made, the scales stay, and the next step is as it would have been.
TEST_P(Fp8Models, ASkippedUpdateLeavesTheScales) {
  Made engine(model_, options(), device_);
  const std::vector<float> inputs = array_of(engine, "fp8 input scales"),
                           gradients = array_of(engine, "fp8 gradient scales");
  engine.micro_step(true);
  testing::array_on_host(engine, optim::kGradients)[7] = NAN;
  engine.update();
  EXPECT_EQ(array_of(engine, "fp8 input scales"), inputs);
  EXPECT_EQ(array_of(engine, "fp8 gradient scales"), gradients);
  for (const char* records : {"fp8 input amax", "fp8 gradient amax"})
    for (const float amax : array_of(engine, records)) EXPECT_EQ(amax, 0.0f) << records;
  engine.micro_step(true);
  engine.update();
  EXPECT_NE(array_of(engine, "fp8 gradient scales"), gradients);
}

// In the files of a checkpoint, so that a run goes on with the bits it would have had.
TEST_P(Fp8Models, ScalesAreStateThatIsSaved) {
  const LoweredModel lowered = lower(model_, options());
  std::vector<std::string> saved;
  for (const optim::StateArray& array : lowered.state)
    if (std::string_view(array.file) == optim::kFp8File) saved.push_back(array.name);
  EXPECT_EQ(saved, (std::vector<std::string>{"fp8 input scales", "fp8 gradient scales"}));
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->name);
  return names;
}
const auto kName = [](const auto& c) { return c.param; };
INSTANTIATE_TEST_SUITE_P(Families, Fp8Models, ::testing::ValuesIn(family_names()), kName);
INSTANTIATE_TEST_SUITE_P(Families, Fp8Gradients, ::testing::ValuesIn(family_names()), kName);

}  // namespace
}  // namespace redline::model
