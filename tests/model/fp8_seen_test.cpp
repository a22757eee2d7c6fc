// A look at the tensors in eight bits: it names all of them, sees what does not fit, and changes no bit of the step.
#include <cmath>
#include <map>

#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "ops/fp8.h"

namespace redline::model {
namespace {

using namespace redline::testing;

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

INSTANTIATE_TEST_SUITE_P(Recompute, Fp8SeenTest,
                         ::testing::Values(program::Recompute::none, program::Recompute::block));

}  // namespace
}  // namespace redline::model
