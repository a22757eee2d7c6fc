// Products in eight bits: which are taken, what they cost and keep; their scales from step to step; the gradients of
// the head; and a look at the values.
#include "model/fp8_linears.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/signals.h"
#include "base/small_floats.h"
#include "model/engine.h"
#include "model/tiny.h"
#include "model/tiny_fp8.h"
#include "ops/fp8.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using device::Kind;
using namespace redline::testing;
using program::Program;
using program::Recompute;
using program::ValueId;

template <class... Ops>
std::int64_t count(const Program& p) {
  return std::ranges::count_if(p.nodes,
                               [](const program::Node& n) { return (std::holds_alternative<Ops>(n.op) || ...); });
}
// Products of linears, those of experts among them.
std::int64_t fp8_nodes(const Program& p) {
  return count<ops::Fp8Product<ValueId>, ops::GroupedFp8Product<ValueId>, ops::GroupedFp8WeightGrad<ValueId>>(p);
}
std::int64_t output_nodes(const Program& p) { return count<ops::Linear<ValueId>, ops::GroupedLinear<ValueId>>(p); }
std::int64_t input_grad_nodes(const Program& p) {
  return count<ops::LinearInputGrad<ValueId>, ops::GroupedLinearInputGrad<ValueId>>(p);
}
std::int64_t weight_grad_nodes(const Program& p) {
  return count<ops::LinearWeightGrad<ValueId>, ops::GroupedLinearWeightGrad<ValueId>>(p);
}

// A tiny model in eight bits at work: weights drawn, a batch in place, scales found.
struct Fp8Engine : Engine {
  Fp8Engine(const config::Model& m, const LoweringOptions& o, device::Device& d) : Engine(m, o, d) {
    initialise(3);
    upload(tiny_batch(m.vocab));
    set_step(0, 1e-3, 32, 0);
    if (!o.fp8.empty()) find_scales(*this);
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
  LoweringOptions options(Kind kind = Kind::cpu) const { return fp8_options(model_, kTinyShape, kind); }
  config::Model model_;
  device::CpuDevice device_{2};
};

TEST_P(Fp8Models, PlansHaveNoFault) {
  set_layers(model_, 3);
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
      EXPECT_EQ(fp8_nodes(p), 4 * 3 * model_.layers) << p.name;
      EXPECT_EQ(output_nodes(p) + input_grad_nodes(p) + weight_grad_nodes(p), 0) << p.name;
    } else if (p.name != kUpdate && p.name != kRefresh) {
      EXPECT_FALSE(has_fp8_node(p)) << p.name;
    }
  }
  for (const std::string_view name : {kFirst, kAccumulate, kUpdate, kRefresh, kEvaluate, kLogits, kPrefill, kDecode})
    EXPECT_TRUE(seen.contains(name)) << name;
}

TEST_P(Fp8Models, OnlyTheProductsOfTheListAreTaken) {
  const std::string of_experts = model_.experts > 0 ? "expert_" : "";
  for (const auto& [product, forward, input, weight] : {std::tuple<std::string, int, int, int>{"qkv/forward", 1, 0, 0},
                                                        {"out/input", 0, 1, 0},
                                                        {of_experts + "gate_up/input", 0, 1, 0},
                                                        {of_experts + "down/weight", 0, 0, 1}}) {
    LoweringOptions o = options();
    o.fp8 = {product};
    const LoweredModel lowered = lower(model_, o);
    EXPECT_EQ(program::check_plan(lowered.set), std::vector<std::string>{}) << product;
    for (const std::string_view name : {kFirst, kAccumulate}) {
      const Program& p = lowered.set.find(name);
      EXPECT_EQ(fp8_nodes(p), model_.layers) << product;
      EXPECT_EQ(output_nodes(p), (4 - forward) * model_.layers) << product;
      EXPECT_EQ(input_grad_nodes(p), (4 - input) * model_.layers) << product;
      EXPECT_EQ(weight_grad_nodes(p), (4 - weight) * model_.layers) << product;
    }
    // Only copies that a product reads are kept: a weight by rows, by columns, or not at all.
    std::int64_t copies = 0;
    for (std::int32_t i = 0; i < std::ssize(lowered.set.values); ++i) {
      const program::Value& v = lowered.set.at({i});
      copies += v.role == program::Role::working && is_fp8(v.dtype) && lowered.set.owner({i}) == ValueId{i};
    }
    EXPECT_EQ(copies, weight ? 0 : model_.layers) << product;
  }
}

// A card's kernel casts either half of a gated block's gradient in tiles of 16: other widths are cast apart.
TEST_P(Fp8Models, HalvesThatAreNoMultiplesOfSixteenAreCastApart) {
  (model_.experts > 0 ? model_.expert_ffn : model_.ffn) = 40;
  const std::string of_experts = model_.experts > 0 ? "expert_" : "";
  const LoweringOptions o = options(Kind::cuda);
  EXPECT_TRUE(std::ranges::count(o.fp8, of_experts + "gate_up/input"));
  EXPECT_FALSE(std::ranges::count(o.fp8, of_experts + "down/input"));
  const LoweredModel lowered = lower(model_, o);
  EXPECT_EQ(program::check_plan(lowered.set), std::vector<std::string>{});
  int grads = 0, casts = 0;
  for (const program::Node& node : lowered.set.find(kFirst).nodes) {
    if (const auto* const grad = std::get_if<ops::SwiGluGrad<ValueId>>(&node.op)) {
      EXPECT_FALSE(grad->fp8.present()) << node.full_name();
      ++grads;
    }
    if (const auto* const cast = std::get_if<ops::Quantize<ValueId>>(&node.op))
      casts += lowered.set.at(cast->x).shape[1] == 80;
  }
  EXPECT_GT(grads, 0);
  EXPECT_EQ(casts, grads);
}

// A node's product is that of the row whose weights it multiplies by, whatever values and nodes are called.
TEST_P(Fp8Models, AProductIsKnownByItsRow) {
  for (const bool fp8 : {false, true}) {
    LoweringOptions o = options();
    if (!fp8) o.fp8 = {};
    LoweredModel lowered = lower(model_, o);
    const auto products = [&] {
      std::map<std::string, int> found;
      for (const program::Node& node : lowered.set.find(kFirst).nodes)
        ++found[fp8_product_of(lowered.table, lowered.set, node)];
      return found;
    };
    const auto named = products();
    EXPECT_EQ(named.size(), 1u + 4 * 3) << fp8;
    for (program::Value& v : lowered.set.values) v.name = "layer 0/qkv";
    for (program::Program& p : lowered.set.programs)
      for (program::Node& node : p.nodes) node.name = "out";
    EXPECT_EQ(products(), named);
  }
}

// Gradients are gradients and moments moments: what fp8 and the guard keep has roles of its own.
TEST_P(Fp8Models, RolesTellTheTruth) {
  LoweringOptions o = options();
  o.spike = 10;
  const LoweredModel lowered = lower(model_, o);
  const auto in = [&](program::Role role) { return lowered.set.memory.device.by_role[static_cast<int>(role)]; };
  const std::int64_t array = aligned(4 * lowered.layout.total);
  EXPECT_EQ(in(program::Role::gradient), array);
  EXPECT_EQ(in(program::Role::moment), 2 * array);
  EXPECT_GT(in(program::Role::scale), 0);
  EXPECT_GT(in(program::Role::record), 0);
  for (std::size_t i = 0; i < lowered.state.size(); ++i) {
    const program::Role role = lowered.set.at(lowered.state_values[i]).role;
    const optim::StateKind kind = lowered.state[i].kind;
    EXPECT_EQ(kind == optim::StateKind::fp8_scales, role == program::Role::scale) << lowered.state[i].name;
    if (kind == optim::StateKind::fp8_records) {
      EXPECT_EQ(role, program::Role::record) << lowered.state[i].name;
    }
  }
}

TEST_P(Fp8Models, ACardKeepsLessForTheBackwardPass) {
  set_layers(model_, 6);
  model_.hidden = 256;
  model_.head_dim = 64;
  model_.ffn = 512;
  model_.attention_bias = model_.mlp_bias = false;  // whose gradients read what products have in eight bits
  if (model_.experts > 0) model_.expert_ffn = 128;
  const data::BatchShape shape{.rows = 4, .seq_len = 256, .max_segments = 4};
  for (const auto recompute : {Recompute::none, Recompute::mlp}) {
    LoweringOptions in_fp8 = fp8_options(model_, shape, Kind::cuda);
    in_fp8.recompute = recompute;
    LoweringOptions in_bf16 = in_fp8;
    in_bf16.fp8.clear();
    const LoweredModel eight = lower(model_, in_fp8), sixteen = lower(model_, in_bf16);
    ASSERT_EQ(eight.set.programs[0].name, kFirst);
    EXPECT_LT(eight.set.memory.device.transient_by_program[0], sixteen.set.memory.device.transient_by_program[0])
        << static_cast<int>(recompute);
  }
}

// Cosines of the angles between gradients in eight bits and in fp32, by tensor.
class Fp8Gradients : public Fp8Models {
 protected:
  Fp8Gradients() {
    model_.init_std = 0.08;                     // what products give is then as large as in a model of the usual width
    model_.experts_per_token = model_.experts;  // casts send no token to another expert
  }

  std::map<std::string, double> cosines(const std::vector<std::string>& products) {
    LoweringOptions with = options(), without = with;
    with.fp8 = products;
    without.compute = DType::f32;
    without.fp8.clear();
    Fp8Engine in_fp8(model_, with, device_), in_fp32(model_, without, device_);
    for (Fp8Engine* engine : {&in_fp8, &in_fp32}) engine->micro_step(true);
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

  // A QK-norm brings small queries and keys up to 1: attention is sharper there, and sharper for errors as well, all
  // the more where a window of 5 leaves few keys to average over.
  double least(double usual) const { return (*model_.qk_norm ? 0.98 : usual) - (model_.window > 0 ? 0.015 : 0); }
};

TEST_P(Fp8Gradients, AreNearThoseOfFp32) {
  set_layers(model_, 1);  // every product on the way adds its 6%
  for (const auto& [name, cosine] : cosines(options().fp8)) EXPECT_GT(cosine, least(0.99)) << name;
}

// What is taken from the wrong node, turned over wrongly or scaled twice shows here.
TEST_P(Fp8Gradients, EachProductAloneMovesThemLittle) {
  for (const std::string& product : options().fp8) {
    double smallest = 1;
    for (const auto& [name, cosine] : cosines({product})) {
      EXPECT_GT(cosine, least(0.995)) << product << ": " << name;
      smallest = std::min(smallest, cosine);
    }
    EXPECT_LT(smallest, 0.9998) << product << " was not cast";
  }
}

TEST_P(Fp8Models, ComputingAgainChangesNoBit) {
  set_layers(model_, 3);
  for (const double dropout : {0.0, 0.2}) {
    model_.dropout = dropout;
    std::vector<float> losses, gradients, scales;
    for (const auto what : {Recompute::none, Recompute::mlp, Recompute::block}) {
      LoweringOptions o = options();
      o.recompute = what;
      Fp8Engine engine(model_, o, device_);
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
  Fp8Engine engine(model_, options(), device_);
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
    Fp8Engine engine(model_, options(), device);
    engine.micro_step(true);
    engine.update();
    parameters[threads - 1] = array_of(engine, optim::kParameters);
  }
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_EQ(parameters[0], parameters[2]);
}

// Scales are a tensor's, but they change in the update only: within a step a document cannot be seen through them.
TEST_P(Fp8Models, DocumentsCannotSeeEachOther) {
  Fp8Engine engine(model_, options(), device_);
  expect_documents_apart(engine, tiny_batch(model_.vocab));
}

// What is measured and written does not know of eight bits.
TEST_P(Fp8Models, EvaluationIsThatOfBf16) {
  LoweringOptions plain = options();
  plain.fp8.clear();
  Fp8Engine in_fp8(model_, options(), device_), in_bf16(model_, plain, device_);
  const std::vector<float> scales = array_of(in_fp8, "fp8 input scales"), recorded = array_of(in_fp8, kFp8Records);
  EXPECT_EQ(in_fp8.evaluate(), in_bf16.evaluate());
  EXPECT_EQ(in_fp8.logits(), in_bf16.logits());
  EXPECT_EQ(array_of(in_fp8, "fp8 input scales"), scales);
  EXPECT_EQ(array_of(in_fp8, kFp8Records), recorded) << "nothing is recorded";
  in_fp8.micro_step(true);
  EXPECT_NE(array_of(in_fp8, kFp8Records), recorded);
}

TEST_P(Fp8Models, WhatIsRecordedIsTheLargestOfAllMicroBatches) {
  Fp8Engine engine(model_, options(), device_);
  std::vector<float> apart[2];
  const data::Batch batches[] = {tiny_batch(model_.vocab, 1), tiny_batch(model_.vocab, 2)};
  for (const int i : {0, 1}) {
    engine.executor().clear(engine.lowered().at(kFp8Records));
    engine.upload(batches[i]);
    engine.micro_step(true);
    apart[i] = array_of(engine, kFp8Records);
  }
  engine.executor().clear(engine.lowered().at(kFp8Records));
  for (const int i : {0, 1}) {
    engine.upload(batches[i]);
    engine.micro_step(i == 0);
  }
  const std::vector<float> together = array_of(engine, kFp8Records);
  for (std::size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i], std::max(apart[0][i], apart[1][i])) << i;
}

// A gradient that is not finite: the update is not made, the scales stay, and the next step is as it would have been.
TEST_P(Fp8Models, ASkippedUpdateLeavesTheScales) {
  Fp8Engine engine(model_, options(), device_);
  const std::vector<float> inputs = array_of(engine, "fp8 input scales"),
                           gradients = array_of(engine, "fp8 gradient scales");
  engine.micro_step(true);
  array_on_host(engine, optim::kGradients)[7] = NAN;
  engine.update();
  EXPECT_EQ(array_of(engine, "fp8 input scales"), inputs);
  EXPECT_EQ(array_of(engine, "fp8 gradient scales"), gradients);
  for (const float amax : array_of(engine, kFp8Records)) EXPECT_EQ(amax, 0.0f);
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

class Fp8Experts : public Fp8Models {};

// A step of training, after which every expert's copies are those of its weights and of its own scale.
TEST_P(Fp8Experts, EveryMatrixHasAScaleOfItsOwn) {
  TinyEngine engine(model_, options(), device_);
  const std::span<float> weights = array_on_host(engine, optim::kParameters);
  const std::size_t row = [&] {
    const auto& table = engine.lowered().table;
    std::size_t i = 0;
    while (table[i].fp8 != "expert_down") ++i;
    return i;
  }();
  const Shape shape = engine.lowered().table[row].shape;
  const auto first = static_cast<std::size_t>(engine.lowered().layout.offsets[row]);
  const auto size = static_cast<std::size_t>(shape[1] * shape[2]);
  for (std::size_t e = 0; e < static_cast<std::size_t>(shape[0]); ++e)
    for (std::size_t i = 0; i < size; ++i) weights[first + e * size + i] *= std::exp2(static_cast<float>(2 * e));
  engine.executor().run(kRefresh);
  std::vector<float> scales;
  for (const Fp8Tensor& t : engine.lowered().fp8) {
    if (t.name.find("layer 0/down weight of expert ") == std::string::npos) continue;
    ops::Fp8Scale entry;
    engine.executor().read(t.scale, &entry, sizeof entry);
    scales.push_back(entry.scale);
    const std::size_t e = scales.size() - 1;
    float largest = 0;
    for (std::size_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(weights[first + e * size + i]));
    EXPECT_EQ(entry.scale, ops::scale_for(f32_from_bf16(bf16_from_f32(largest)), kE4m3.largest)) << e;
  }
  ASSERT_EQ(scales.size(), static_cast<std::size_t>(shape[0]));
  EXPECT_LT(scales.back(), scales.front());
  const data::Batch batch = tiny_batch(model_.vocab);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isfinite(step_on(engine, batch, i, 1e-3)));
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8Experts, ::testing::Values("olmoe", "qwen3_moe", "mixtral"), kName);

constexpr data::BatchShape kScalesShape{.rows = 2, .seq_len = 32, .max_segments = 4};

config::Model scales_model(const char* family = "llama") {
  config::Model m = tiny_model(family);
  m.hidden = 32, m.heads = 2, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  return m;
}

LoweringOptions scales_options(const config::Model& model) {
  return {.batch = kScalesShape,
          .compute = DType::bf16,
          .fp8 = fp8_candidates(family_of(model).table(model), kScalesShape.tokens()).products,
          .optim = {.lr = 1e-3}};
}

data::Batch scales_batch(std::uint64_t key = 1) {
  return batch_of(kScalesShape, {random_document(key, 32, 53), random_document(key + 1, 20, 53)});
}

struct ScalesState {
  std::vector<float> scales, parameters, moments;
  explicit ScalesState(Engine& e)
      : scales(array_of(e, kFp8InputScales)), parameters(array_of(e, optim::kParameters)), moments() {
    const std::vector<float> gradients = array_of(e, kFp8GradientScales);
    scales.insert(scales.end(), gradients.begin(), gradients.end());
    for (const char* name : {"first moments", "second moments"}) {
      const std::vector<float> m = array_of(e, name);
      moments.insert(moments.end(), m.begin(), m.end());
    }
  }
  bool operator==(const ScalesState&) const = default;
};

const ops::Fp8Scale& entry(const std::vector<float>& scales, std::size_t i) {
  return reinterpret_cast<const ops::Fp8Scale*>(scales.data())[i];
}

void scales_step(Engine& e, std::uint64_t index, const data::Batch& b) {
  e.upload(b);
  e.set_step(index, 1e-3, 0, 0);
  e.micro_step(true);
  e.set_step(index, 1e-3, static_cast<double>(b.pairs), 0);
  e.update();
}

TEST(Fp8Scales, ComeFromTheFirstBatchBeforeItIsTrainedOn) {
  for (const char* family : {"llama", "olmo2"}) {
    device::CpuDevice device(2);
    const config::Model model = scales_model(family);
    TinyEngine engine(model, scales_options(model), device);
    const ScalesState before(engine);
    engine.upload(scales_batch());
    engine.set_step(0, 1e-3, 0, 0);
    engine.micro_step(true);
    const ScalesState after(engine);
    EXPECT_EQ(after.parameters, before.parameters);
    EXPECT_EQ(after.moments, before.moments);
    const std::size_t entries = after.scales.size() / ops::kScaleFloats;
    EXPECT_EQ(entries, 2u * 4 * 2);  // inputs and gradients of four linears in two layers
    for (std::size_t i = 0; i < entries; ++i) {
      const ops::Fp8Scale& s = entry(after.scales, i);
      EXPECT_GT(s.amax, 0) << i;
      EXPECT_EQ(s.scale, std::exp2(std::floor(std::log2(s.scale)))) << i;
      EXPECT_EQ(s.inverse, 1 / s.scale) << i;
      EXPECT_TRUE(s.next == 0 || s.next == 2) << i << ": a norm's has no history, others that of two passes";
    }
  }
}

// The first micro-step of an engine that had scales all along is that of one which had to find them.
TEST(Fp8Scales, FindingThemLeavesNoOtherTrace) {
  device::CpuDevice device(2);
  const config::Model model = scales_model();
  Engine finds(model, scales_options(model), device), has(model, scales_options(model), device);
  for (Engine* e : {&finds, &has}) {
    e->initialise(3);
    e->upload(scales_batch());
    e->set_step(0, 1e-3, 0, 0);
    e->micro_step(true);
  }
  const double loss = finds.loss_sum();
  has.micro_step(true);  // once more, without finding anything
  EXPECT_EQ(has.loss_sum(), loss);
  EXPECT_EQ(array_of(has, optim::kGradients), array_of(finds, optim::kGradients));
}

TEST(Fp8Scales, ARehearsalLeavesThemAsTheyAre) {
  device::CpuDevice device(2);
  const config::Model model = scales_model();
  Engine one(model, scales_options(model), device), two(model, scales_options(model), device);
  for (Engine* e : {&one, &two}) {
    e->initialise(3);
    scales_step(*e, 0, scales_batch());
  }
  const ScalesState before(two);
  two.rehearse(scales_batch(17));
  EXPECT_EQ(ScalesState(two), before);
  for (const float amax : array_of(two, kFp8Records)) EXPECT_EQ(amax, 0);
  scales_step(one, 1, scales_batch(5));
  scales_step(two, 1, scales_batch(5));
  EXPECT_EQ(ScalesState(one), ScalesState(two));
}

// Documents longer than a pass for scales takes, in a model of one layer.
class Fp8LongRows : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRow = Engine::kCalibratedTokens + 512;
  static constexpr data::BatchShape kShape{.rows = 1, .seq_len = kRow, .max_segments = 4};

  Fp8LongRows() { set_layers(model_, 1); }

  // An engine that finds scales in its first micro-step, with documents of these lengths.
  struct Long : TinyEngine {
    Long(const config::Model& m, const data::BatchShape& shape, device::Device& d)
        : TinyEngine(m, lowering(m, shape), d) {}
    static LoweringOptions lowering(const config::Model& m, const data::BatchShape& shape) {
      LoweringOptions o = scales_options(m);
      o.batch = shape;
      return o;
    }
    void step(const data::Batch& b) {
      upload(b);
      set_step(0, 1e-3, 0, 0);
      micro_step(true);
    }
    std::vector<float> gradients() { return array_of(*this, optim::kGradients); }
  };
  data::Batch batch(const data::BatchShape& shape, const std::vector<std::int64_t>& lengths) const {
    return documents_of(shape, lengths, model_.vocab, 1);
  }
  static data::Batch cut(data::Batch b, std::int64_t longest = Engine::kCalibratedTokens) {
    b.cut_documents(longest);
    return b;
  }

  // From the batch as it is.
  static void find_by_hand(Engine& engine) {
    for (int pass = 0; pass < 2; ++pass)
      for (const std::string_view program : {kFirst, kRefresh}) engine.executor().run(program);
  }

  config::Model model_ = scales_model();
  device::CpuDevice device_{2};
};

TEST_F(Fp8LongRows, GiveScalesInPiecesAndAreTrainedOnWhole) {
  using Lengths = std::vector<std::int64_t>;
  for (const Lengths& lengths : {Lengths{kRow}, Lengths{kRow - 100, 60}}) {
    const data::Batch whole = batch(kShape, lengths), pieces = cut(whole);
    ASSERT_EQ(pieces.documents, whole.documents + 1);
    Long ours(model_, kShape, device_), by_hand(model_, kShape, device_);
    ours.upload(batch(kShape, {40}));
    ours.evaluate();  // which finds no scales, and leaves the next batch to
    ours.step(whole);
    by_hand.step(pieces);
    EXPECT_EQ(ScalesState(ours), ScalesState(by_hand));
    EXPECT_NE(by_hand.loss_sum(), ours.loss_sum());
    by_hand.step(whole);  // has scales by now
    EXPECT_EQ(ours.loss_sum(), by_hand.loss_sum());
    EXPECT_TRUE(ours.gradients() == by_hand.gradients());
  }
}

// What a model sees in pieces it would have seen in whole rows.
TEST_F(Fp8LongRows, HaveNearlyTheScalesOfTheirPieces) {
  Long pieces(model_, kShape, device_), whole(model_, kShape, device_);
  const data::Batch row = batch(kShape, {kRow});
  pieces.upload(row);
  whole.upload(row);
  EXPECT_FALSE(pieces.calibrate());
  find_by_hand(whole);
  const std::vector<float> a = ScalesState(pieces).scales, b = ScalesState(whole).scales;
  ASSERT_EQ(a.size(), b.size());
  EXPECT_NE(a, b);
  for (std::size_t i = 0; i < a.size() / ops::kScaleFloats; ++i)
    EXPECT_LE(std::abs(std::log2(entry(a, i).scale / entry(b, i).scale)), 1) << i;
}

TEST_F(Fp8LongRows, AreCutNoFurtherThanThereIsRoom) {
  const data::BatchShape two{.rows = 1, .seq_len = 2 * kRow, .max_segments = 2};
  const data::Batch row = batch(two, {two.seq_len});
  Long ours(model_, two, device_), by_hand(model_, two, device_);
  ours.upload(row);
  EXPECT_FALSE(ours.calibrate());
  by_hand.upload(cut(row, kRow));  // pieces of kCalibratedTokens would be three
  find_by_hand(by_hand);
  EXPECT_EQ(ScalesState(ours), ScalesState(by_hand));
}

TEST_F(Fp8LongRows, AreLeftWholeWhereTheyAreShortOrThereIsNoRoom) {
  constexpr std::int64_t kLongest = Engine::kCalibratedTokens;
  for (const data::BatchShape shape : {data::BatchShape{.rows = 1, .seq_len = kLongest, .max_segments = 4},
                                       {.rows = 1, .seq_len = kRow, .max_segments = 1}}) {
    const data::Batch row = batch(shape, {shape.seq_len});
    Long ours(model_, shape, device_), by_hand(model_, shape, device_);
    ours.upload(row);
    EXPECT_TRUE(ours.calibrate());
    by_hand.upload(row);
    find_by_hand(by_hand);
    EXPECT_EQ(ScalesState(ours), ScalesState(by_hand)) << shape.seq_len;
  }
}

// Before the passes, in them and between them: nothing of them stays, and the batch is whole again.
TEST_F(Fp8LongRows, AreFoundAnewWhereAPassIsInterrupted) {
  const data::Batch whole = batch(kShape, {kRow});
  Long other(model_, kShape, device_);
  const double start = steady_seconds();
  other.step(whole);
  const double step = steady_seconds() - start;
  int dropped = 0;
  for (const double share : {0.0, 0.15, 0.3, 0.45}) {
    Long ours(model_, kShape, device_);
    StopFlag stop = share == 0;
    ours.drop_on(&stop);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(share * step));
      stop = 1;
    });
    bool done = true;
    try {
      ours.step(whole);
    } catch (const Interrupted&) {
      done = false;
    }
    later.join();
    stop = 0;
    if (!done) {
      ++dropped;
      Long fresh(model_, kShape, device_);
      fresh.upload(whole);
      EXPECT_EQ(ours.evaluate(), fresh.evaluate()) << share;
      ours.micro_step(true);
    }
    EXPECT_EQ(ScalesState(ours), ScalesState(other)) << share;
    EXPECT_EQ(ours.loss_sum(), other.loss_sum()) << share;
  }
  EXPECT_GE(dropped, 1);
}

TEST_F(Fp8LongRows, GiveARehearsalTheirScales) {
  const data::Batch whole = batch(kShape, {kRow});
  Long other(model_, kShape, device_);
  other.step(whole);
  for (const double most : {Engine::kRehearsedFlops, 0.0}) {
    Long ours(model_, kShape, device_);
    ours.rehearse(whole, most);
    EXPECT_EQ(ScalesState(ours), ScalesState(other)) << most;
    ours.step(whole);
    EXPECT_EQ(ours.loss_sum(), other.loss_sum()) << most;
    EXPECT_TRUE(ours.gradients() == other.gradients()) << most;
  }
}

config::Config config_of(const std::string& family, bool tied, const char* head) {
  config::Config c;
  c.model = tiny_model(family, tied);
  c.model.hidden = 32, c.model.head_dim = 16, c.model.ffn = 48, c.model.vocab = 80;
  c.model.init_std = 0.1;
  c.train.batch_size = 2, c.train.seq_len = 32, c.train.accumulate = 2;
  c.data.max_segments = 4;
  c.precision.matmul = "fp8", c.precision.head = head;
  return c;
}

const ops::LmLoss<program::ValueId>& loss_of(const LoweredModel& m, std::string_view program) {
  for (const program::Node& node : m.set.find(program).nodes)
    if (const auto* loss = std::get_if<ops::LmLoss<program::ValueId>>(&node.op)) return *loss;
  fail_machine("{} has no loss", program);
}

TEST(Fp8Head, LowersForEveryFamilyAndDevice) {
  for (const Family* family : families()) {
    for (const bool tied : {false, true}) {
      for (const Kind kind : {Kind::cpu, Kind::cuda}) {
        for (const char* recompute : {"none", "block"}) {
          config::Config c = config_of(std::string(family->name), tied, "fp8");
          c.train.recompute = recompute;
          LoweringOptions o = lowering_options(c, kind);
          ASSERT_TRUE(o.fp8_head);
          o.loss_chunk = 37;
          const LoweredModel m = lower(c.model, o);
          EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{});
          for (const std::string_view step : {kFirst, kAccumulate}) {
            const auto& loss = loss_of(m, step);
            ASSERT_TRUE(loss.fp8.present());
            EXPECT_EQ(m.set.at(loss.fp8.x).shape, (Shape{32, 64}));
            EXPECT_EQ(m.set.at(loss.fp8.weight).shape, (Shape{32, 80}));
            EXPECT_EQ(m.set.at(loss.fp8.dlogits).shape, (Shape{80, 32})) << "chunks are multiples of 16";
            EXPECT_EQ(m.set.at(loss.logits).shape, (Shape{32, 80}));
          }
          EXPECT_FALSE(loss_of(m, kEvaluate).fp8.weight.present());
        }
      }
    }
  }
}

TEST(Fp8Head, IsRefusedWithAReasonWhereProductsWouldBe) {
  const auto candidates = [](std::int64_t vocab, std::int64_t tokens, bool asked) {
    config::Config c = config_of("llama", false, "fp8");
    c.model.vocab = vocab;
    return fp8_candidates(family_of(c.model).table(c.model), tokens, asked);
  };
  EXPECT_TRUE(candidates(80, 64, true).head);
  EXPECT_TRUE(candidates(80, 64, true).refused.empty());
  EXPECT_FALSE(candidates(80, 64, false).head);
  EXPECT_FALSE(candidates(81, 64, true).head);
  EXPECT_EQ(candidates(81, 64, true).refused.size(), 1u);
  EXPECT_TRUE(candidates(81, 64, false).refused.empty());
  EXPECT_FALSE(candidates(80, 60, true).head);

  config::Config c = config_of("llama", false, "fp8");
  c.model.vocab = 81;
  const LoweringOptions o = lowering_options(c, Kind::cpu);
  EXPECT_FALSE(o.fp8_head);
  EXPECT_FALSE(loss_of(lower(c.model, o), kFirst).fp8.weight.present());
}

// One batch again and again, two micro-batches a step.
struct Learned {
  std::vector<double> losses;
  std::vector<float> gradients;  // of the first step
};
Learned learn(const config::Config& c, int steps, bool head_alone = false) {
  device::CpuDevice device(2);
  LoweringOptions o = lowering_options(c, Kind::cpu);
  if (head_alone) o.fp8.clear();
  TinyEngine engine(c.model, o, device);
  const data::Batch batch =
      batch_of(batch_shape(c), {random_document(1, 31, c.model.vocab), random_document(2, 9, c.model.vocab),
                                random_document(3, 17, c.model.vocab)});
  Learned learned;
  for (int step = 0; step < steps; ++step) {
    engine.upload(batch);
    engine.set_step(static_cast<std::uint64_t>(step), 3e-3, static_cast<double>(2 * batch.pairs), 0);
    engine.executor().poison_transients();
    engine.micro_step(true);
    engine.micro_step(false);
    learned.losses.push_back(engine.loss_sum() / static_cast<double>(2 * batch.pairs));
    if (step == 0) learned.gradients = array_of(engine, optim::kGradients);
    engine.update();
  }
  return learned;
}

TEST(Fp8Head, LearnsAsOneInBf16Does) {
  constexpr int kSteps = 20;
  for (const bool tied : {false, true}) {
    const Learned bf16 = learn(config_of("llama", tied, "bf16"), kSteps),
                  fp8 = learn(config_of("llama", tied, "fp8"), kSteps);
    EXPECT_EQ(fp8.losses[0], bf16.losses[0]) << "logits are the same product";
    EXPECT_LT(fp8.losses.back(), 0.9 * fp8.losses[0]);
    for (int i = 0; i < kSteps; ++i) {
      const auto step = static_cast<std::size_t>(i);
      EXPECT_NEAR(fp8.losses[step], bf16.losses[step], 0.02 * bf16.losses[step]) << "step " << step;
    }
  }
}

// Linears in bf16, so that no cast but the head's is between the two.
TEST(Fp8Head, ChangesGradientsByTheErrorOfItsCasts) {
  for (const Family* family : families()) {
    for (const bool tied : {false, true}) {
      const std::string name(family->name);
      const Learned bf16 = learn(config_of(name, tied, "bf16"), 1, true),
                    fp8 = learn(config_of(name, tied, "fp8"), 1, true);
      EXPECT_EQ(fp8.losses, bf16.losses);
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < bf16.gradients.size(); ++i) {
        difference += std::pow(fp8.gradients[i] - bf16.gradients[i], 2.0);
        norm += std::pow(bf16.gradients[i], 2.0);
      }
      EXPECT_LT(std::sqrt(difference), 0.06 * std::sqrt(norm)) << name;
      EXPECT_GT(std::sqrt(difference), 0.01 * std::sqrt(norm)) << name << ": was it in eight bits at all?";
    }
  }
}

config::Model model_in_sixteens() {
  config::Model m = tiny_model("llama");
  m.hidden = 32;
  m.head_dim = 16;
  m.ffn = 48;
  return m;
}

class Fp8SeenTest : public ::testing::TestWithParam<program::Recompute> {
 protected:
  Fp8SeenTest() : batch_(batch_of({1, 32, 4}, {random_document(1, 20, 53), random_document(2, 9, 53)})) {}

  std::unique_ptr<Engine> engine() {
    const config::Model m = model_in_sixteens();
    LoweringOptions o;
    o.batch = batch_.shape;
    o.compute = DType::bf16;
    o.recompute = GetParam();
    o.fp8 = fp8_candidates(family_of(m).table(m), o.batch.tokens()).products;
    auto made = std::make_unique<Engine>(m, o, device_);
    made->initialise(3);
    made->upload(batch_);
    made->set_step(0, 1e-3, static_cast<double>(batch_.pairs), 0);
    return made;
  }
  // A micro-step and an update, so that scales are known.
  static void settle(Engine& e) {
    e.micro_step(true);
    e.update();
  }
  static std::map<std::string, Fp8Seen> look(Engine& e) {
    std::map<std::string, Fp8Seen> seen;
    for (Fp8Seen& t : e.watched_micro_step(true)) seen.emplace(t.name, t);
    return seen;
  }
  void change_scale(Engine& e, std::string_view name, float factor) {
    for (const Fp8Tensor& t : e.lowered().fp8) {
      if (t.name != name) continue;
      ops::Fp8Scale entry;
      e.executor().read(t.scale, &entry, sizeof entry);
      entry.scale *= factor;
      entry.inverse /= factor;
      e.executor().write(t.scale, &entry, sizeof entry);
    }
  }

  device::CpuDevice device_{2};
  data::Batch batch_;
};

TEST_P(Fp8SeenTest, NamesWhatEveryLinearCasts) {
  const auto e = engine();
  settle(*e);
  const auto seen = look(*e);
  EXPECT_EQ(seen.size(), 2u * 4 * 3);
  for (const char* linear : {"qkv", "out", "gate_up", "down"}) {
    for (const char* what : {"input", "gradient", "weight"}) {
      const std::string name = fmt::format("layer 1/{} {}", linear, what);
      ASSERT_TRUE(seen.contains(name)) << name;
      const Fp8Seen& t = seen.at(name);
      EXPECT_EQ(t.format, std::string_view(what) == "gradient" ? DType::e5m2 : DType::e4m3) << name;
      EXPECT_GT(t.scale, 0) << name;
      EXPECT_GT(t.amax, 0) << name;
      EXPECT_LE(t.amax * t.scale, t.format == DType::e5m2 ? 57344 : 448) << name;
      EXPECT_EQ(t.saturated, 0) << name;
      EXPECT_LT(t.zero, 0.5) << name;
    }
  }
}

TEST_P(Fp8SeenTest, ChangesNoBitOfTheStep) {
  const auto one = engine(), other = engine();
  for (const auto& e : {&one, &other}) settle(**e);
  for (int step = 0; step < 2; ++step) {
    one->micro_step(true);
    look(*other);
    EXPECT_EQ(array_of(*one, optim::kGradients), array_of(*other, optim::kGradients));
    EXPECT_EQ(one->loss_sum(), other->loss_sum());
    one->update();
    other->update();
  }
  EXPECT_EQ(array_of(*one, optim::kParameters), array_of(*other, optim::kParameters));
}

TEST_P(Fp8SeenTest, SeesWhatDoesNotFitAndWhere) {
  const auto e = engine();
  settle(*e);
  change_scale(*e, "layer 1/down input", 0x1p20f);
  change_scale(*e, "layer 0/qkv gradient", 0x1p-40f);
  for (const auto& [name, t] : look(*e)) {
    const bool large = name == "layer 1/down input", small = name == "layer 0/qkv gradient";
    EXPECT_EQ(t.saturated > 0.5, large) << name;
    EXPECT_EQ(t.amax * t.scale > 448 && t.format == DType::e4m3, large) << name;
    EXPECT_EQ(t.zero > 0.9, small) << name;
  }
}

// 192 rows of experts are a block of columns and a half.
TEST(Fp8Seen, WhatFillsABlockOfColumnsIsNoZeroOfTheTensor) {
  config::Model m = tiny_model("olmoe");
  m.hidden = 32;
  m.expert_ffn = 48;
  device::CpuDevice device(2);
  const data::Batch batch = batch_of({1, 96, 4}, {random_document(1, 50, m.vocab), random_document(2, 46, m.vocab)});
  LoweringOptions o;
  o.batch = batch.shape;
  o.compute = DType::bf16;
  o.fp8 = {"expert_down/weight"};
  Engine e(m, o, device);
  e.initialise(3);
  e.upload(batch);
  e.set_step(0, 1e-3, static_cast<double>(batch.pairs), 0);
  int columns = 0;
  for (const Fp8Seen& t : e.watched_micro_step(true)) {
    columns += t.name.ends_with("down input") || t.name.ends_with("down gradient");
    EXPECT_TRUE(t.zero >= 0 && t.zero < 0.1) << t.name << ": " << t.zero;
  }
  EXPECT_EQ(columns, 2 * m.layers);
}

INSTANTIATE_TEST_SUITE_P(Recompute, Fp8SeenTest,
                         ::testing::Values(program::Recompute::none, program::Recompute::block));

}  // namespace
}  // namespace redline::model
