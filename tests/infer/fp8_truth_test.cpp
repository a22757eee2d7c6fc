// A step in eight bits against one that makes the same casts: other last bits are within the tolerances of bf16,
// although they change many codes; a scale that is off is not.
#include <algorithm>

#include "infer/planted_scale.h"
#include "infer/verify.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"

namespace redline::infer {
namespace {

using namespace redline::testing;

class Fp8TruthTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kVocab = 96;
  Fp8TruthTest() : batch_(batch_of({1, 128, 4}, {random_document(1, 70, kVocab), random_document(2, 58, kVocab)})) {
    // Noise of a bf16's last bits in what every layer reads.
    const Tensor parameters = engine_->executor().tensor(engine_->lowered().at(optim::kParameters));
    const model::StoredParameter& embedding = engine_->layout().stored.front();
    const Random random(3, 9);
    for (std::int64_t i = 0; i < embedding.elements; ++i)
      parameters.f32()[embedding.offset + i] *=
          static_cast<float>(1 + 0x1p-10 * (random.uniform(static_cast<std::uint64_t>(i)) - 0.5));
    engine_->executor().run(model::kRefresh);
    for (int pass = 0; pass < 2; ++pass) {
      engine_->micro_step(true);
      engine_->executor().run(model::kRefresh);
    }
    take_scales(*truth_, *engine_);
  }

  std::unique_ptr<model::Engine> make() {
    config::Model m = tiny_model("llama");
    m.hidden = 64;
    m.head_dim = 16;
    m.ffn = 96;
    m.vocab = kVocab;
    m.init_std = 0.1;
    model::LoweringOptions o;
    o.batch = batch_.shape;
    o.compute = DType::bf16;
    o.fp8 = model::fp8_candidates(model::family_of(m).table(m), o.batch.tokens()).products;
    auto engine = std::make_unique<model::Engine>(m, o, device_);
    engine->initialise(3);
    engine->upload(batch_);
    engine->set_step(0, 1e-3, static_cast<double>(batch_.pairs), 0);
    return engine;
  }

  device::CpuDevice device_{2};
  data::Batch batch_;
  std::unique_ptr<model::Engine> engine_ = make(), truth_ = make();
};

TEST_F(Fp8TruthTest, OtherLastBitsAreWithin) {
  const std::vector<Comparison> all = compare_step(*engine_, *truth_);
  for (const Comparison& c : all)
    EXPECT_TRUE(c.within()) << c.name << " " << name_of(c.measure) << " " << c.error << " > " << c.tolerance;
  const auto of = [&](std::string_view name) {
    const auto it = std::ranges::find(all, name, &Comparison::name);
    return it == all.end() ? NAN : it->error;
  };
  EXPECT_EQ(of("layer 0/qkv weight"), 0) << "the same weights have the same codes";
  EXPECT_GT(of("layer 1/qkv input"), 0) << "some codes differ";
  EXPECT_GT(of("layer 0/out gradient"), 0);
  EXPECT_GE(of("grad.model.layers.0.self_attn.o_proj.weight"), 0);
}

TEST_F(Fp8TruthTest, OneScaleThatIsOffIsSeen) {
  for (const char* linear : {"qkv", "out", "gate_up", "down"}) {
    for (const char* what : {"input", "gradient", "weight"}) {
      const std::string tensor = fmt::format("layer 0/{} {}", linear, what);
      scale_off(tensor, 2)(*engine_);
      const std::vector<Comparison> all = compare_step(*engine_, *truth_);
      EXPECT_FALSE(std::ranges::all_of(all, &Comparison::within)) << tensor;
      scale_off(tensor, 0.5f)(*engine_);
    }
  }
}

}  // namespace
}  // namespace redline::infer
