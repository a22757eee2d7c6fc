// An engine in eight bits takes its scales from its first batch and then only from its steps: what finds them leaves no
// other trace, and a rehearsal leaves none at all.
#include <gtest/gtest.h>

#include <cmath>

#include "model/engine.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"

namespace redline::model {
namespace {

using testing::array_of;

constexpr data::BatchShape kShape{.rows = 2, .seq_len = 32, .max_segments = 4};

config::Model model_of(const char* family = "llama") {
  config::Model m = testing::tiny_model(family);
  m.hidden = 32, m.heads = 2, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  return m;
}

LoweringOptions in_fp8(const config::Model& model) {
  LoweringOptions o;
  o.batch = kShape;
  o.compute = DType::bf16;
  o.fp8 = fp8_candidates(family_of(model).table(model), kShape.tokens()).products;
  o.optim.lr = 1e-3;
  return o;
}

data::Batch batch(std::uint64_t key = 1) {
  return testing::batch_of(kShape, {testing::random_document(key, 32, 53), testing::random_document(key + 1, 20, 53)});
}

struct State {
  std::vector<float> scales, parameters, moments;
  explicit State(Engine& e)
      : scales(array_of(e, kFp8InputScales)), parameters(array_of(e, optim::kParameters)), moments() {
    const std::vector<float> gradients = array_of(e, kFp8GradientScales);
    scales.insert(scales.end(), gradients.begin(), gradients.end());
    for (const char* name : {"first moments", "second moments"}) {
      const std::vector<float> m = array_of(e, name);
      moments.insert(moments.end(), m.begin(), m.end());
    }
  }
  bool operator==(const State&) const = default;
};

const ops::Fp8Scale& entry(const std::vector<float>& scales, std::size_t i) {
  return reinterpret_cast<const ops::Fp8Scale*>(scales.data())[i];
}

void step(Engine& e, std::uint64_t index, const data::Batch& b) {
  e.upload(b);
  e.set_step(index, 1e-3, 0, 0);
  e.micro_step(true);
  e.set_step(index, 1e-3, static_cast<double>(b.pairs), 0);
  e.update();
}

TEST(Fp8Scales, ComeFromTheFirstBatchBeforeItIsTrainedOn) {
  for (const char* family : {"llama", "olmo2"}) {
    device::CpuDevice device(2);
    const config::Model model = model_of(family);
    Engine engine(model, in_fp8(model), device);
    engine.initialise(3);
    const State before(engine);
    engine.upload(batch());
    engine.set_step(0, 1e-3, 0, 0);
    engine.micro_step(true);
    const State after(engine);
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
  const config::Model model = model_of();
  Engine finds(model, in_fp8(model), device), has(model, in_fp8(model), device);
  for (Engine* e : {&finds, &has}) {
    e->initialise(3);
    e->upload(batch());
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
  const config::Model model = model_of();
  Engine one(model, in_fp8(model), device), two(model, in_fp8(model), device);
  for (Engine* e : {&one, &two}) {
    e->initialise(3);
    step(*e, 0, batch());
  }
  const State before(two);
  two.rehearse(batch(17));
  EXPECT_EQ(State(two), before);
  for (const std::string_view record : {kFp8InputAmax, kFp8GradientAmax})
    for (const float amax : array_of(two, record)) EXPECT_EQ(amax, 0);
  step(one, 1, batch(5));
  step(two, 1, batch(5));
  EXPECT_EQ(State(one), State(two));
}

}  // namespace
}  // namespace redline::model
