// Whole updates of Muon on a card against the CPU, in graphs and without, with copies of weights in bf16 and in eight
// bits.
#include "model/engine.h"
#include "model/tiny.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr double kMuonLr = 1e-2;
constexpr int kMuonSteps = 3;

LoweringOptions muon_options(const Optimizer& optimizer, DType compute, device::Kind kind = device::Kind::cuda) {
  LoweringOptions o;
  o.batch = kCardShape;
  o.accumulate = false;
  o.compute = compute;
  o.kind = kind;
  o.optimizer = &optimizer;
  if (&optimizer == &kNorMuon) o.optim.muon_beta2 = 0.9;
  return o;
}

double muon_step(Engine& engine, int index) {
  const std::int64_t vocab = engine.model().vocab;
  const auto key = static_cast<std::uint64_t>(10 * index);
  const data::Batch batch =
      batch_of(kCardShape, {random_document(key, 90, vocab), random_document(key + 1, 71, vocab)});
  return step_on(engine, batch, index, kMuonLr);
}

class CudaMuonModels : public OnCard<::testing::TestWithParam<const char*>> {
 protected:
  config::Model model_ = tiny_model(GetParam());
  device::CpuDevice cpu_{2};
};

// What a step moves, of card and CPU, from the same start: rounds in bf16 turn it a little.
TEST_P(CudaMuonModels, AStepIsTheCpus) {
  for (const Optimizer* optimizer : {&kMuon, &kNorMuon}) {
    Engine ours(model_, muon_options(*optimizer, DType::f32), card());
    Engine cpu(model_, muon_options(*optimizer, DType::f32, device::Kind::cpu), cpu_);
    for (Engine* engine : {&ours, &cpu}) engine->initialise(3);
    const std::vector<float> before = array_of(cpu, optim::kParameters);
    EXPECT_NEAR(muon_step(ours, 0) / muon_step(cpu, 0), 1, 1e-4);
    const std::vector<float> got = array_of(ours, optim::kParameters), want = array_of(cpu, optim::kParameters);
    double wrong = 0, moved = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      wrong += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      moved += std::pow(static_cast<double>(want[i]) - static_cast<double>(before[i]), 2);
    }
    EXPECT_LT(std::sqrt(wrong / moved), 0.05);
    for (int i = 1; i < kMuonSteps; ++i) EXPECT_NEAR(muon_step(ours, i) / muon_step(cpu, i), 1, 2e-2) << i;
  }
}

TEST_P(CudaMuonModels, GraphsAndRepetitionChangeNoBit) {
  for (const Optimizer* optimizer : {&kMuon, &kNorMuon}) {
    std::vector<std::vector<float>> parameters;
    for (const bool graphs : {true, false, true}) {
      LoweringOptions o = muon_options(*optimizer, DType::bf16);
      o.execution.graphs = graphs;
      TinyEngine engine(model_, o, card());
      for (int i = 0; i < kMuonSteps; ++i) muon_step(engine, i);
      parameters.push_back(array_of(engine, optim::kParameters));
    }
    EXPECT_TRUE(parameters[0] == parameters[1]) << "with and without graphs";
    EXPECT_TRUE(parameters[0] == parameters[2]) << "twice the same";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaMuonModels, ::testing::Values("llama", "qwen3", "olmo2", "qwen2", "gemma3"));

class CudaMuonModel : public OnCard<> {};

TEST_F(CudaMuonModel, LearnsWithEveryPrecision) {
  config::Model model = tiny_model("llama", true);
  model.hidden = 64;
  model.head_dim = 16;
  model.heads = model.kv_heads = 4;
  model.ffn = 128;
  model.vocab = 64;
  for (const bool fp8 : {false, true}) {
    LoweringOptions o = muon_options(kMuon, DType::bf16);
    if (fp8) o.fp8 = {"qkv", "out", "gate_up", "down"};
    TinyEngine engine(model, o, card());
    const data::Batch batch = batch_of(kCardShape, {random_document(1, 96, 64), random_document(2, 96, 64)});
    std::vector<double> losses;
    for (int i = 0; i < 15; ++i) {
      engine.upload(batch);
      engine.set_step(static_cast<std::uint64_t>(i), kMuonLr, static_cast<double>(batch.pairs), 0);
      engine.micro_step(true);
      engine.update();
      losses.push_back(engine.loss_sum() / static_cast<double>(batch.pairs));
    }
    EXPECT_LT(losses.back(), losses.front() - 0.5) << fp8;
  }
}

}  // namespace
}  // namespace redline::model
