// Whole models trained with Muon: every Hugging Face matrix of a layer is updated as it is written down, all else as
// AdamW does; runs repeat to the bit, and the plan has room for it where AdamW's activations stand.
#include "optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/small_floats.h"
#include "config/load.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "ops/orthogonalize.h"
#include "optim/adamw.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr double kMuonLr = 0.01;

LoweringOptions muon_options(const Optimizer& optimizer) {
  LoweringOptions o;
  o.batch = kTinyShape;
  o.accumulate = false;
  o.optimizer = &optimizer;
  o.optim.clip = 0.5;
  o.optim.weight_decay = 0.2;
  if (&optimizer == &kNorMuon) o.optim.muon_beta2 = 0.9;
  return o;
}

double muon_step(Engine& engine, int index, std::uint64_t key = 0) {
  const std::int64_t vocab = engine.model().vocab;
  const data::Batch batch =
      batch_of(kTinyShape, {random_document(key, 20, vocab), random_document(key + 1, 23, vocab)});
  return step_on(engine, batch, index, kMuonLr);
}

// Routers are AdamW's.
bool in_layer(const StoredParameter& p) {
  return p.name.find("layers.") != p.name.npos && p.shape.size() == 2 && !p.name.ends_with(".gate.weight");
}

using Matrix = std::vector<double>;
Matrix turned(const Matrix& x, std::size_t rows, std::size_t columns) {
  Matrix t(x.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) t[j * rows + i] = x[i * columns + j];
  return t;
}
Matrix times(const Matrix& a, const Matrix& b, std::size_t rows, std::size_t inner, std::size_t columns) {
  Matrix c(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = 0; k < inner; ++k)
      for (std::size_t j = 0; j < columns; ++j) c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return c;
}

// U to O, one matrix, as docs/training.md has it.
Matrix orthogonal(Matrix x, std::size_t rows, std::size_t columns, ops::Polynomials which, std::int64_t rounds) {
  if (rows > columns) return turned(orthogonal(turned(x, rows, columns), columns, rows, which, rounds), columns, rows);
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= 1.02 * std::sqrt(squares) + 1e-30;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto [a, b, c] = ops::polynomial(which, round);
    const Matrix gram = times(x, turned(x, rows, columns), rows, columns, rows);
    Matrix both = times(gram, gram, rows, rows, rows);
    for (std::size_t i = 0; i < both.size(); ++i)
      both[i] = static_cast<double>(b) * gram[i] + static_cast<double>(c) * both[i];
    Matrix next = times(both, x, rows, rows, columns);
    for (std::size_t i = 0; i < x.size(); ++i) next[i] += static_cast<double>(a) * x[i];
    x = next;
  }
  return x;
}

class MuonModels : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  config::Model model_ = tiny_model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  device::CpuDevice device_{2};
};

// Two steps, so that momentum counts; with each set of polynomials.
TEST_P(MuonModels, EveryMatrixMovesAsWrittenDownAndAllElseAsAdamW) {
  for (const bool polar : {false, true}) {
    LoweringOptions o = muon_options(kMuon);
    o.optim.muon_coefficients = polar ? "polar_express" : "quintic";
    o.optim.muon_rounds = polar ? 4 : 5;
    o.optim.muon_momentum_from = 0.5;
    o.optim.muon_momentum_steps = 2;
    const ops::Polynomials which = polar ? ops::Polynomials::polar_express : ops::Polynomials::quintic;
    TinyEngine engine(model_, o, device_), adamw(model_, muon_options(kAdamW), device_);
    adamw.initialise(3);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    std::vector<double> momentum(static_cast<std::size_t>(engine.layout().total));
    for (int index = 0; index < 2; ++index) {
      const std::vector<float> before = array_of(engine, optim::kParameters);
      muon_step(engine, index);
      const std::vector<float> after = array_of(engine, optim::kParameters);
      const std::vector<float> gradients = array_of(engine, optim::kGradients);
      UpdateResult result;
      engine.executor().read(engine.lowered().update_result, &result, sizeof result);
      const double mu = index == 0 ? 0.5 : (0.5 + o.optim.muon_momentum) / 2;
      int matrices = 0;
      for (const StoredParameter& p : engine.layout().stored) {
        if (!in_layer(p)) continue;
        ++matrices;
        const auto rows = static_cast<std::size_t>(p.shape[0]), columns = static_cast<std::size_t>(p.shape[1]);
        Matrix u;
        for (auto i = static_cast<std::size_t>(p.offset); i < static_cast<std::size_t>(p.offset + p.elements); ++i) {
          const double g = static_cast<double>(result.grad_scale) * static_cast<double>(gradients[i]);
          momentum[i] = mu * momentum[i] + g;
          u.push_back(g + mu * momentum[i]);
        }
        const Matrix x = orthogonal(u, rows, columns, which, o.optim.muon_rounds);
        const double scale = kMuonLr * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t at = static_cast<std::size_t>(p.offset) + i;
          const double want = static_cast<double>(before[at]) * (1 - kMuonLr * 0.2) - scale * x[i];
          ASSERT_NEAR(static_cast<double>(after[at]), want, 2e-4 * scale + 1e-6) << p.name << " " << i;
        }
      }
      const std::int64_t dense = std::ssize(model_.dense_layers);
      EXPECT_EQ(matrices, model_.experts > 0
                              ? 4 * model_.layers + 3 * (dense + model_.experts * (model_.layers - dense))
                              : 7 * model_.layers);
      if (index > 0) continue;  // from here on the two have other gradients
      muon_step(adamw, index);
      const std::vector<float> want = array_of(adamw, optim::kParameters);
      for (const StoredParameter& p : engine.layout().stored) {
        if (in_layer(p)) continue;
        for (auto i = static_cast<std::size_t>(p.offset); i < static_cast<std::size_t>(p.offset + p.elements); ++i)
          ASSERT_EQ(after[i], want[i]) << p.name;
      }
    }
  }
}

TEST_P(MuonModels, LearnAndRepeatToTheBit) {
  for (const Optimizer* optimizer : {&kMuon, &kNorMuon}) {
    std::vector<double> losses[3];
    std::vector<float> parameters[3];
    for (const int turn : {0, 1, 2}) {
      LoweringOptions o = muon_options(*optimizer);
      if (turn == 2) o.recompute = program::Recompute::block;
      TinyEngine engine(model_, o, device_);
      for (int i = 0; i < 12; ++i) losses[turn].push_back(muon_step(engine, i));
      parameters[turn] = array_of(engine, optim::kParameters);
      EXPECT_LT(losses[turn].back(), losses[turn].front() - 1) << "a batch that it sees again and again";
    }
    for (const int turn : {1, 2}) {
      EXPECT_EQ(losses[turn], losses[0]) << turn;
      EXPECT_EQ(parameters[turn], parameters[0]) << turn;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MuonModels,
                         ::testing::Combine(::testing::Values("llama", "qwen3", "olmo2", "qwen2", "gemma3", "olmoe",
                                                              "qwen3_moe", "mixtral"),
                                            ::testing::Bool()));

TEST(MuonModel, KeepsMomentumForMatricesAndMomentsForAllElse) {
  const LoweredModel m = lower(tiny_model("llama"), muon_options(kNorMuon));
  std::int64_t momentum = 0, first = 0, rows = 0, matrices = 0, row_count = 0;
  for (const optim::StateArray& a : m.state) {
    if (a.name == optim::kMomentum) momentum += a.elements();
    if (a.name == optim::kFirstMoments) first += a.elements();
    if (a.name == optim::kRowMoments) rows += a.elements();
  }
  for (const StoredParameter& p : m.layout.stored) {
    if (!in_layer(p)) continue;
    matrices += p.elements;
    row_count += p.shape[0];
  }
  EXPECT_GE(momentum, matrices);
  EXPECT_EQ(momentum + first, m.layout.total);
  EXPECT_EQ(rows, row_count);
  std::vector<std::string> names;
  for (const StateTensor& t : state_tensors(m.state, m.layout, optim::kOptimizerFile)) names.push_back(t.name);
  const auto has = [&](const std::string& name) { return std::ranges::find(names, name) != names.end(); };
  EXPECT_TRUE(has("momentum.model.layers.1.self_attn.k_proj.weight"));
  EXPECT_TRUE(has("row_moments.model.layers.1.mlp.up_proj.weight"));
  EXPECT_TRUE(has("exp_avg.model.embed_tokens.weight"));
  EXPECT_TRUE(has("exp_avg_sq.lm_head.weight"));
  EXPECT_FALSE(has("exp_avg.model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(has("momentum.lm_head.weight"));
}

// Zero gradients: projections that begin at zero would divide by nothing.
TEST(MuonModel, ZeroGradientsMoveNothing) {
  device::CpuDevice device(2);
  for (const Optimizer* optimizer : {&kMuon, &kNorMuon}) {
    LoweringOptions o = muon_options(*optimizer);
    o.optim.weight_decay = 0;
    TinyEngine engine(tiny_model("llama"), o, device);
    const std::vector<float> before = array_of(engine, optim::kParameters);
    engine.executor().clear(engine.lowered().at(optim::kGradients));
    engine.executor().clear(engine.lowered().loss_sum);
    engine.set_step(0, kMuonLr, 10, 0);
    engine.update();
    EXPECT_EQ(array_of(engine, optim::kParameters), before);
    EXPECT_TRUE(engine.parameters_finite());
  }
}

// With a gradient that is no number nothing of the state changes.
TEST(MuonModel, AStepThatIsNotFiniteTouchesNothing) {
  device::CpuDevice device(2);
  TinyEngine engine(tiny_model("qwen3"), muon_options(kNorMuon), device);
  muon_step(engine, 0);
  const auto all = [&] {
    return all_bytes(engine, [&](std::span<const StateTensor> tensors, const TakeBytes& take) {
      read_state(tensors, engine.state(), device, take);
    });
  };
  const std::vector<std::byte> before = all();
  array_on_host(engine, optim::kGradients)[5] = std::numeric_limits<float>::quiet_NaN();
  engine.set_step(1, kMuonLr, 10, 0);
  engine.update();
  EXPECT_EQ(all(), before);
  muon_step(engine, 1);
  EXPECT_NE(all(), before);
}

// Copies in bf16, and those in eight bits made from them, follow the parameters; what lies between matrices of a group
// stays.
TEST(MuonModel, CopiesOfWeightsFollow) {
  config::Model model = tiny_model("llama");
  model.hidden = 32;
  model.head_dim = 16;
  model.heads = model.kv_heads = 2;
  model.ffn = 48;
  model.vocab = 64;
  LoweringOptions o = muon_options(kMuon);
  o.batch = {2, 32, 8};
  o.compute = DType::bf16;
  o.fp8 = fp8_candidates(family_of(model).table(model), o.batch.tokens()).products;
  ASSERT_FALSE(o.fp8.empty());
  device::CpuDevice device(2);
  TinyEngine engine(model, o, device);
  const data::Batch batch =
      batch_of(o.batch, {random_document(1, 30, model.vocab), random_document(2, 32, model.vocab)});
  engine.upload(batch);
  std::vector<double> losses;
  for (int i = 0; i < 10; ++i) {
    engine.set_step(static_cast<std::uint64_t>(i), kMuonLr, static_cast<double>(batch.pairs), 0);
    engine.micro_step(true);
    engine.update();
    losses.push_back(engine.loss_sum() / static_cast<double>(batch.pairs));
  }
  EXPECT_LT(losses.back(), losses.front() - 0.5);
  const std::vector<float> parameters = array_of(engine, optim::kParameters);
  const Tensor working = engine.executor().tensor(engine.lowered().at(optim::kWorking));
  for (std::size_t i = 0; i < parameters.size(); ++i)
    ASSERT_EQ(working.as<std::uint16_t>()[i], bf16_from_f32(parameters[i])) << i;
}

// Presets as they are trained on a card: lowering touches no device.
TEST(MuonModel, APlanHasNoMoreMemoryThanAdamWs) {
  for (const char* preset : {"gqa-180m", "llama-1.36b"}) {
    std::int64_t total[2];
    for (const bool muon : {false, true}) {
      const config::Config c =
          config::load({.file = "",
                        .preset = preset,
                        .overrides = {fmt::format("optim.name={}", muon ? "muon" : "adamw"), "optim.muon_beta2=0"}});
      const LoweringOptions o = lowering_options(c, device::Kind::cuda);
      EXPECT_EQ(o.optimizer == &kMuon, muon);
      const LoweredModel m = lower(c.model, o);
      total[muon] = m.set.memory.device.total;
      double flops = 0, want = 0;
      for (const program::Node& node : m.set.find(kUpdate).nodes) flops += node.cost.flops;
      for (const StoredParameter& p : m.layout.stored) {
        if (!in_layer(p)) continue;
        const auto small = static_cast<double>(std::min(p.shape[0], p.shape[1])),
                   large = static_cast<double>(std::max(p.shape[0], p.shape[1]));
        want += 5 * (4 * small * small * large + 2 * small * small * small);
      }
      EXPECT_DOUBLE_EQ(flops, muon ? want : 0);
    }
    EXPECT_LT(total[true], total[false]) << preset;
  }
}

}  // namespace
}  // namespace redline::model
