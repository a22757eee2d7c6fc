// Whole tiny models of every family on the CPU: plans, gradients, memory, bits; and batches in which some tokens are
// context that is not learned.
#include "model/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/small_floats.h"
#include "model/tiny.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using Documents = std::vector<std::vector<std::int32_t>>;
using ModelCase = std::tuple<std::string, bool, double>;

LoweringOptions engine_options(const data::BatchShape& shape = kTinyShape) {
  return {.batch = shape, .logits = true, .seed = 5};
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    diff += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(diff / norm);
}

// Every family that is registered, its head tied or not.
std::vector<ModelCase> model_cases(double dropout) {
  std::vector<ModelCase> all;
  for (const Family* family : families())
    for (bool tied : {false, true}) all.emplace_back(family->name, tied, dropout);
  return all;
}
std::string case_name(const ::testing::TestParamInfo<ModelCase>& info) {
  const auto& [family, tied, dropout] = info.param;
  return fmt::format("{}_{}{}", family, tied ? "tied" : "untied", dropout > 0 ? "_dropout" : "");
}

class Models : public ::testing::TestWithParam<ModelCase> {
 protected:
  Models() : model_(tiny_model(std::get<0>(GetParam()), std::get<1>(GetParam()))) {
    model_.dropout = std::get<2>(GetParam());
  }
  config::Model model_;
  device::CpuDevice device_{2};
};

TEST_P(Models, PlansHaveNoFaultAndAreWhatIsAllocated) {
  Engine engine(model_, engine_options(), device_);
  EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
  const program::MemoryPlan& memory = engine.programs().memory;  // on a CPU both memories are its own
  EXPECT_EQ(device_.allocated_bytes(), memory.device.total + memory.host.total);
}

TEST_P(Models, NoNodeReadsWhatNothingWrote) {
  TinyEngine engine(model_, engine_options(), device_);
  engine.upload(tiny_batch(model_.vocab));
  engine.set_step(0, 1e-3, 32, 0);
  std::vector<std::vector<float>> seen[2];
  double losses[2];
  for (int poisoned : {0, 1}) {
    const auto poison = [&] {
      if (poisoned) engine.executor().poison_transients();
    };
    poison();
    engine.micro_step(true);
    seen[poisoned].push_back(array_of(engine, optim::kGradients));
    poison();
    engine.micro_step(false);
    seen[poisoned].push_back(array_of(engine, optim::kGradients));
    poison();
    losses[poisoned] = engine.evaluate();
    poison();
    seen[poisoned].push_back(engine.logits());
  }
  EXPECT_TRUE(std::isfinite(losses[0]));
  EXPECT_EQ(losses[0], losses[1]);
  for (std::size_t i = 0; i < seen[0].size(); ++i) EXPECT_EQ(seen[0][i], seen[1][i]) << "program " << i;
}

TEST_P(Models, ARehearsalChangesNothingThatStays) {
  data::Batch full(kTinyShape);
  for (std::uint64_t row = 0; row < 2; ++row) full.append(random_document(row, kTinyShape.seq_len, model_.vocab));
  ASSERT_TRUE(full.full_rows());
  const data::Batch some = tiny_batch(model_.vocab);
  std::vector<std::vector<float>> seen[4];
  double last_loss = 0;
  for (const int rehearsed : {0, 1, 2, 3}) {
    TinyEngine engine(model_, engine_options(), device_);
    if (rehearsed > 0) engine.rehearse(rehearsed == 2 ? full : some, rehearsed == 3 ? 0 : Engine::kRehearsedFlops);
    if (rehearsed == 1) last_loss = engine.loss_sum();
    if (rehearsed == 3) {
      EXPECT_NE(engine.loss_sum(), last_loss) << "of a long micro-step, only the first ran";
    }
    for (std::uint64_t step = 0; step < 2; ++step) {
      engine.upload(some);
      engine.set_step(step, 1e-3, 32, 0);
      engine.micro_step(true);
      engine.update();
    }
    for (const auto array : {optim::kParameters, optim::kFirstMoments, optim::kSecondMoments, optim::kGradients})
      seen[rehearsed].push_back(array_of(engine, array));
  }
  EXPECT_TRUE(seen[0] == seen[1]);
  EXPECT_TRUE(seen[0] == seen[2]);
  EXPECT_TRUE(seen[0] == seen[3]);
}

// Over micro-batches, too, each is near the one in fp32: within a place of bf16 for each rounding.
TEST_P(Models, GradientsInBf16AreThoseOfFp32Rounded) {
  constexpr int kMicro = 4;
  std::vector<float> want, got;
  for (const DType type : {DType::f32, DType::bf16}) {
    LoweringOptions o = engine_options();
    o.gradients = type;
    TinyEngine engine(model_, o, device_);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    const program::ProgramSet& set = engine.programs();
    for (std::size_t i = 0; i < set.programs.size(); ++i)
      if (set.programs[i].name == kUpdate) {
        EXPECT_LT(set.memory.device.transient_by_program[i], 2 * engine.lowered().layout.total)
            << "never are all of them in fp32";
      }
    for (int micro = 0; micro < kMicro; ++micro) {
      engine.upload(tiny_batch(model_.vocab, static_cast<std::uint64_t>(micro)));
      engine.set_step(0, 0, 1, static_cast<std::uint64_t>(micro) * 1000);
      engine.micro_step(micro == 0, micro + 1 == kMicro);
    }
    const Tensor t = engine.executor().tensor(engine.lowered().at(optim::kGradients));
    for (std::int64_t i = 0; i < t.elements(); ++i)
      (type == DType::f32 ? want : got)
          .push_back(type == DType::f32 ? t.f32()[i] : f32_from_bf16(t.as<std::uint16_t>()[i]));
  }
  ASSERT_EQ(got.size(), want.size());
  double wrong = 0, all = 0, bias = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    wrong += error * error;
    all += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    bias += error * static_cast<double>(want[i]);
  }
  EXPECT_LT(std::sqrt(wrong / all), 0.01);
  EXPECT_GT(wrong, 0);
  EXPECT_LT(std::abs(bias / all), 0.001) << "they are as long as in fp32";
}

// Updates of a tenth of a place of bf16 arrive in the mean: rounded to the nearest, hardly any weight would move.
TEST_P(Models, MastersInBf16MoveAsThoseOfFp32) {
  std::vector<float> moves[2];
  for (const DType type : {DType::f32, DType::bf16}) {
    LoweringOptions o = engine_options();
    o.masters = type;
    TinyEngine engine(model_, o, device_);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    EXPECT_FALSE(engine.lowered().at(optim::kWorking).present());
    const std::vector<float> before = array_of(engine, optim::kParameters);
    for (int step = 0; step < 40; ++step) step_on(engine, tiny_batch(model_.vocab), step, 1e-5);
    const std::vector<float> after = array_of(engine, optim::kParameters);
    for (std::size_t i = 0; i < before.size(); ++i) moves[type == DType::bf16 ? 1 : 0].push_back(after[i] - before[i]);
  }
  double along = 0, all = 0;
  for (std::size_t i = 0; i < moves[0].size(); ++i) {
    along += static_cast<double>(moves[0][i]) * static_cast<double>(moves[1][i]);
    all += static_cast<double>(moves[0][i]) * static_cast<double>(moves[0][i]);
  }
  EXPECT_NEAR(along / all, 1, 0.1);
  EXPECT_TRUE(moves[0] != moves[1]);
}

// Products read them as they are: nothing else is made of them, and drawn weights are those of fp32, rounded.
TEST_P(Models, MastersInBf16AreTheWeightsOfProducts) {
  LoweringOptions apart = engine_options();
  apart.compute = DType::bf16;
  LoweringOptions one = apart;
  one.masters = DType::bf16;
  TinyEngine with_copies(model_, apart, device_), without(model_, one, device_);
  const auto weights = [](const Engine& engine) {
    const std::int64_t* const bytes = engine.programs().memory.device.by_role;
    return bytes[static_cast<int>(program::Role::parameter)] + bytes[static_cast<int>(program::Role::working)];
  };
  const std::int64_t elements = without.lowered().layout.total;
  EXPECT_EQ(weights(without), aligned(2 * elements));
  EXPECT_EQ(weights(with_copies), aligned(2 * elements) + aligned(4 * elements));
  EXPECT_EQ(array_of(without, optim::kParameters), array_of(with_copies, optim::kWorking));
  for (Engine* const engine : {static_cast<Engine*>(&with_copies), static_cast<Engine*>(&without)})
    engine->upload(tiny_batch(model_.vocab));
  EXPECT_EQ(without.evaluate(), with_copies.evaluate());
}

TEST_P(Models, GradientsAgreeWithFiniteDifferences) {
  if (model_.experts > 0) model_.experts_per_token = model_.experts;  // a small step would change routes otherwise
  TinyEngine engine(model_, engine_options(), device_);
  // Norm weights away from 1, so that their gradients' paths are told apart.
  std::span<float> p = array_on_host(engine, optim::kParameters);
  const Random random(9, 9);
  const auto is_norm = [](const ParameterSpec& spec) { return spec.init == Init::ones; };
  for (const Range& range : ranges_where(engine.table(), engine.layout(), is_norm))
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i)
      p[i] *= static_cast<float>(1 + 0.3 * random.normal(i));
  engine.upload(tiny_batch(model_.vocab));
  engine.set_step(0, 0, 1, 0);
  engine.micro_step(true);
  const std::vector<float> gradient = array_of(engine, optim::kGradients);

  // Along random directions, one for each parameter of the table: cheap, and every element takes part.
  const std::vector<float> start = array_of(engine, optim::kParameters);
  for (std::size_t row = 0; row < engine.table().size(); ++row) {
    const std::int64_t begin = engine.layout().offsets[row], n = engine.table()[row].shape.elements();
    const auto loss_at = [&](double h) {
      for (std::int64_t i = 0; i < n; ++i) {
        const auto e = static_cast<std::size_t>(begin + i);
        p[e] = start[e] + static_cast<float>(h * random.normal(e));
      }
      engine.micro_step(true);  // draws the same dropout; evaluate() would draw none
      const double loss = engine.loss_sum();
      std::copy_n(start.begin() + begin, n, p.begin() + begin);
      return loss;
    };
    double expected = 0, scale = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto e = static_cast<std::size_t>(begin + i);
      const double step = static_cast<float>(random.normal(e));
      expected += gradient[e] * step;
      scale += std::pow(gradient[e] * step, 2);
    }
    const double h = 2e-3 / std::sqrt(static_cast<double>(n));
    // Fourth order: the curvature of a random direction is large where the start is large.
    const double measured = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
    EXPECT_NEAR(measured, expected, 0.02 * std::sqrt(scale) + 0.02 * std::abs(expected) + 1e-2)
        << engine.table()[row].name;
  }
}

// Without dropout: its masks are keyed by a token's place in the batch.
class ModelsWithoutDropout : public Models {};
TEST_P(ModelsWithoutDropout, MicroBatchesGiveTheGradientsOfTheBatchTheyMakeUp) {
  const std::int64_t v = model_.vocab;
  // Very different numbers of pairs: 40, 1 and 12.
  const std::vector<std::vector<std::vector<std::int32_t>>> micro = {
      {random_document(1, 22, v), random_document(2, 20, v)}, {random_document(3, 2, v)}, {random_document(4, 13, v)}};
  std::vector<std::vector<std::int32_t>> all;
  std::int64_t pairs = 0;
  TinyEngine small(model_, engine_options(), device_);
  small.set_step(0, 0, 1, 0);
  for (std::size_t i = 0; i < micro.size(); ++i) {
    const data::Batch batch = batch_of(kTinyShape, micro[i]);
    pairs += batch.pairs;
    small.upload(batch);
    small.micro_step(i == 0);
    all.insert(all.end(), micro[i].begin(), micro[i].end());
  }
  const data::BatchShape big_shape{.rows = 6, .seq_len = 24, .max_segments = 4};
  TinyEngine big(model_, engine_options(big_shape), device_);
  big.set_step(0, 0, 1, 0);
  const data::Batch batch = batch_of(big_shape, all);
  ASSERT_EQ(batch.pairs, pairs);
  big.upload(batch);
  big.micro_step(true);
  EXPECT_NEAR(small.loss_sum() / static_cast<double>(pairs), big.loss_sum() / static_cast<double>(pairs), 1e-6);
  EXPECT_LT(relative_error(array_of(small, optim::kGradients), array_of(big, optim::kGradients)), 1e-5);
}

// With gradients of zero only the decay is left.
TEST_P(Models, WeightDecayShrinksMatricesAndNothingElse) {
  LoweringOptions o = engine_options();
  o.optim.weight_decay = 0.5;
  TinyEngine engine(model_, o, device_);
  const std::vector<float> before = array_of(engine, optim::kParameters);
  engine.set_step(0, 0.25, 1, 0);
  engine.update();
  const std::vector<float> after = array_of(engine, optim::kParameters);
  for (std::size_t row = 0; row < engine.table().size(); ++row) {
    const ParameterSpec& spec = engine.table()[row];
    const auto first = static_cast<std::size_t>(engine.layout().offsets[row]);
    for (std::size_t i = first; i < first + static_cast<std::size_t>(spec.shape.elements()); ++i)
      ASSERT_EQ(after[i], spec.shape.rank() > 1 ? before[i] - 0.25f * 0.5f * before[i] : before[i]) << spec.name;
  }
}

TEST_P(Models, WeightDecayFallsWithTheLearningRateWhereAsked) {
  LoweringOptions o = engine_options();
  o.optim.lr = 0.5;
  o.optim.weight_decay = 0.5;
  o.optim.weight_decay_falls = true;
  TinyEngine engine(model_, o, device_);
  const std::vector<float> before = array_of(engine, optim::kParameters);
  engine.set_step(0, 0.125, 1, 0);
  engine.update();
  const std::vector<float> after = array_of(engine, optim::kParameters);
  const auto n = static_cast<std::size_t>(engine.table()[0].shape.elements());
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(after[i], before[i] - 0.125f * 0.125f * before[i]);
}

// A layer is nothing at first: what a branch is made of has no gradient then, what writes it has, and steps later all
// of it.
TEST_P(Models, LearnFromABeginningOfZeros) {
  const ParameterTable usual = family_of(model_).table(model_);
  model_.init = "zero_out";
  TinyEngine engine(model_, engine_options(), device_);
  const data::Batch batch = tiny_batch(model_.vocab);
  engine.upload(batch);
  const auto largest_gradients = [&](bool zeroed, bool in_layers) {
    std::pair<float, float> ends{std::numeric_limits<float>::infinity(), 0};  // of the table's rows
    const std::vector<float> gradients = array_of(engine, optim::kGradients);
    for (std::size_t row = 0; row < engine.table().size(); ++row) {
      const ParameterSpec& spec = engine.table()[row];
      if ((spec.init != usual[row].init) != zeroed || (spec.name[0] == 'l') != in_layers) continue;
      if (spec.name.ends_with("out bias") || spec.name.ends_with("down bias")) continue;  // zero, and a writer, always
      float most = 0;
      for (std::int64_t i = 0; i < spec.shape.elements(); ++i)
        most = std::max(most, std::abs(gradients[static_cast<std::size_t>(engine.layout().offsets[row] + i)]));
      ends = {std::min(ends.first, most), std::max(ends.second, most)};
    }
    return ends;
  };
  double first = 0;
  for (std::uint64_t step = 0; step < 12; ++step) {
    engine.set_step(step, 0.02, static_cast<double>(batch.pairs), 0);
    engine.micro_step(true);
    if (step == 0) {
      first = engine.loss_sum();
      EXPECT_GT(largest_gradients(true, true).first, 0.0f);
      EXPECT_EQ(largest_gradients(false, true).second, 0.0f);
    }
    engine.update();
    engine.post_result();
    ASSERT_EQ(engine.take_result().update.finite, 1.0f) << step;
  }
  EXPECT_LT(engine.loss_sum(), 0.8 * first);
  EXPECT_GT(largest_gradients(false, true).first, 0.0f);
  EXPECT_TRUE(engine.parameters_finite());
}

// The results of a step are its own though the next one is under way; there is room for two.
TEST_P(Models, ResultsAreTakenInTheOrderOfSteps) {
  TinyEngine engine(model_, engine_options(), device_);
  const data::Batch batch = tiny_batch(model_.vocab);
  engine.upload(batch);
  EXPECT_THROW(engine.take_result(), MachineError);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < 6; step += 2) {
    for (const std::uint64_t next : {step, step + 1}) {
      engine.set_step(next, 0.02, static_cast<double>(batch.pairs), 0);
      engine.micro_step(true);
      engine.update();
      engine.post_result();
      losses.push_back(engine.loss_sum());
    }
    EXPECT_THROW(engine.post_result(), MachineError);
    for (const std::uint64_t taken : {step, step + 1}) {
      const Engine::StepResult result = engine.take_result();
      EXPECT_EQ(result.loss_sum, losses[taken]);
      EXPECT_EQ(result.update.finite, 1.0f);
      EXPECT_GT(result.update.grad_norm, 0.0f);
    }
  }
  EXPECT_NE(losses[0], losses[1]);
}

TEST_P(Models, DocumentsCannotSeeEachOther) {
  TinyEngine engine(model_, engine_options(), device_);
  expect_documents_apart(engine, tiny_batch(model_.vocab));
}

TEST_P(Models, TheSameBitsOnAnyNumberOfThreads) {
  std::vector<float> gradients[3];
  for (int threads : {1, 2, 3}) {
    device::CpuDevice device(threads);
    TinyEngine engine(model_, engine_options(), device);
    engine.upload(tiny_batch(model_.vocab));
    engine.set_step(0, 1e-3, 32, 0);
    engine.micro_step(true);
    engine.update();
    gradients[threads - 1] = array_of(engine, optim::kParameters);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

// Four layers, so that three are computed again and what they share would show.
TEST_P(Models, ComputingAgainGivesTheSameGradientsInLessMemory) {
  set_layers(model_, 4);
  std::vector<float> kept;
  std::int64_t memory = 0;
  double flops = 0;
  for (const auto what : {program::Recompute::none, program::Recompute::mlp, program::Recompute::block}) {
    LoweringOptions o = engine_options();
    o.recompute = what;
    Engine engine(model_, o, device_);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    engine.initialise(3);
    const data::Batch batch = tiny_batch(model_.vocab);
    engine.upload(batch);
    engine.set_step(0, 1e-3, 32, 0);
    engine.executor().poison_transients();
    engine.micro_step(true);
    engine.executor().poison_transients();
    engine.micro_step(false);
    const std::vector<float> gradients = array_of(engine, optim::kGradients);
    const std::int64_t transient = engine.programs().memory.device.transient_by_program[0];
    if (what == program::Recompute::none) {
      kept = gradients;
      flops = engine.model_flops(batch);
    } else {
      EXPECT_EQ(std::memcmp(gradients.data(), kept.data(), kept.size() * sizeof(float)), 0);
      EXPECT_LT(transient, memory);
      EXPECT_EQ(engine.model_flops(batch), flops) << "what is computed again is not the model's work";
    }
    memory = transient;
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, Models, ::testing::ValuesIn(model_cases(0)), case_name);
INSTANTIATE_TEST_SUITE_P(Dropping, Models, ::testing::ValuesIn(model_cases(0.2)), case_name);
INSTANTIATE_TEST_SUITE_P(Plain, ModelsWithoutDropout, ::testing::ValuesIn(model_cases(0)), case_name);

// Whatever stands behind the documents, routers count their tokens alone, and so do gradients and the balance.
TEST(Experts, PaddingIsRoutedNowhere) {
  device::CpuDevice device(1);
  for (const char* family : {"olmoe", "qwen3_moe", "mixtral"}) {
    config::Model model = tiny_model(family);
    model.router_aux = 0.5;
    const std::vector documents = {random_document(1, 9, model.vocab), random_document(2, 14, model.vocab)};
    std::vector<double> totals;
    std::vector<float> gradients;
    double loss = 0;
    for (const std::int64_t length : {23, 24, 61}) {
      LoweringOptions o;
      o.batch = {.rows = 1, .seq_len = length, .max_segments = 4};
      TinyEngine engine(model, o, device);
      const data::Batch batch = batch_of(o.batch, documents);
      engine.upload(batch);
      engine.set_step(0, 1e-3, static_cast<double>(batch.pairs), 0);
      engine.executor().poison_transients();
      engine.micro_step(true);
      const std::vector<double> now = engine.router_totals();
      const std::vector<float> of_now = array_of(engine, optim::kGradients);
      if (length == 23) {
        totals = now, gradients = of_now, loss = engine.loss_sum();
        const RouterFigures figures = router_figures(model, totals, static_cast<double>(batch.pairs));
        EXPECT_GT(figures.balance.value(), 1) << family;
        EXPECT_FALSE(router_figures(model, totals, 0).balance) << family;  // a mean over nothing
        continue;
      }
      EXPECT_NEAR(engine.loss_sum(), loss, 1e-5 * loss) << family << " " << length;
      ASSERT_EQ(now.size(), totals.size());
      for (std::size_t i = 0; i < now.size(); ++i)
        EXPECT_NEAR(now[i], totals[i], 1e-5 * std::abs(totals[i]) + 1e-9) << family << " " << length << ": " << i;
      EXPECT_LT(relative_error(of_now, gradients), 1e-5) << family << " " << length;
    }
  }
}

// Of each layer's loads, and of their sums. A step is so small that no token takes other experts.
TEST(Experts, TheBalanceHasTheGradientOfItsDefinition) {
  device::CpuDevice device(1);
  config::Model model = tiny_model("olmoe");
  model.router_aux = 3;
  std::vector<std::vector<float>> seen;
  for (const char* balance : {"layer", "model"}) {
    model.router_balance = balance;
    TinyEngine engine(model, engine_options(), device);
    const data::Batch batch = tiny_batch(model.vocab);
    engine.upload(batch);
    engine.set_step(0, 0, 1, 0);
    engine.micro_step(true);
    seen.push_back(array_of(engine, optim::kGradients));
    const std::vector<float>& gradient = seen.back();
    const std::span<float> p = array_on_host(engine, optim::kParameters);
    const std::vector<float> start(p.begin(), p.end());
    const Random random(9, 9);
    const auto pairs = static_cast<double>(batch.pairs);
    int routers = 0;
    for (std::size_t row = 0; row < engine.table().size(); ++row) {
      const Shape& shape = engine.table()[row].shape;
      if (shape.rank() != 2 || shape[0] != model.experts) continue;
      ++routers;
      const std::int64_t begin = engine.layout().offsets[row], n = shape.elements();
      const auto loss_at = [&](double h) {
        for (std::int64_t i = 0; i < n; ++i) {
          const auto e = static_cast<std::size_t>(begin + i);
          p[e] = start[e] + static_cast<float>(h * random.normal(e));
        }
        engine.micro_step(true);
        std::copy_n(start.begin() + begin, n, p.begin() + begin);
        return engine.loss_sum() +
               model.router_aux * pairs * router_figures(model, engine.router_totals(), pairs).balance.value();
      };
      double expected = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto e = static_cast<std::size_t>(begin + i);
        expected += static_cast<double>(gradient[e]) * random.normal(e);
      }
      constexpr double kStep = 1e-3;
      const double measured = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      EXPECT_GT(std::abs(expected), 0.5) << "too little to be told from rounding";
      EXPECT_NEAR(measured, expected, 0.02 * std::abs(expected) + 0.02) << balance << ", " << engine.table()[row].name;
    }
    EXPECT_EQ(routers, 2);
  }
  EXPECT_GT(relative_error(seen[0], seen[1]), 1e-3);
}

TEST(Dropout, DependsOnTheStepAndOnTheMicroBatch) {
  config::Model model = tiny_model("llama");
  model.dropout = 0.3;
  device::CpuDevice device(1);
  TinyEngine engine(model, engine_options(), device);
  engine.upload(tiny_batch(model.vocab));
  const auto loss = [&](std::uint64_t step, std::uint64_t first_token) {
    engine.set_step(step, 0, 1, first_token);
    engine.micro_step(true);
    return engine.loss_sum();
  };
  EXPECT_EQ(loss(0, 0), loss(0, 0));
  EXPECT_NE(loss(0, 0), loss(1, 0));
  EXPECT_NE(loss(0, 0), loss(0, 48));
  EXPECT_NE(loss(0, 0), engine.evaluate());  // which drops nothing
}

// The step's FLOPs, node by node, against the closed form that MFU is defined by.
TEST(Flops, NodesAddUpToTheClosedFormForEveryPreset) {
  for (const char* preset :
       {"quick", "ping-95m", "gqa-180m", "cs336-350m", "cs336-350m-90min", "llama-1.36b", "qwen3-1.8b", "olmo2-1.5b"}) {
    config::Config c = config::load({.file = "", .preset = preset, .overrides = {"train.batch_size=2"}});
    const config::Model& m = c.model;
    const data::BatchShape shape{2, c.train.seq_len, 1};
    const LoweredModel lowered = lower(m, {.batch = shape, .accumulate = false, .optim = c.optim});
    double matmul_parameters = static_cast<double>(m.vocab * m.hidden);  // the head, tied or not
    for (const ParameterSpec& p : lowered.table)
      if (p.decayed && p.name != "embedding" && p.name != "head")
        matmul_parameters += p.active * static_cast<double>(p.shape.elements());  // of experts, those of a token
    const double tokens = static_cast<double>(shape.tokens()), t = static_cast<double>(shape.seq_len);
    const double pairs = 2 * t * (t + 1) / 2;
    const double attention = 12.0 * static_cast<double>(m.layers * m.heads * m.head_dim);
    const double closed = 6 * matmul_parameters * tokens + attention * pairs;
    const auto all_kept = program::pairs_of_rows(2, t);
    EXPECT_NEAR(model_flops(lowered, shape, tokens, all_kept) / closed, 1.0, 1e-12) << preset;
    const double palm = 6 * matmul_parameters * tokens + attention * t * tokens;
    const auto no_mask = [&](std::int64_t) { return tokens * t; };
    EXPECT_NEAR(model_flops(lowered, shape, tokens, no_mask) / palm, 1.0, 1e-12) << preset;
    EXPECT_EQ(program::check_plan(lowered.set), std::vector<std::string>{}) << preset;
  }
}

// Every node has the pairs of its own window: with one of 5 tokens in one layer, that layer alone does less.
TEST(Flops, AttentionCountsThePairsOfItsOwnWindow) {
  const config::Model m = tiny_model("llama");
  LoweredModel lowered = lower(m, {.batch = kTinyShape, .accumulate = false});
  const data::Batch batch = tiny_batch(m.vocab);  // documents of 13, 1, 20 and 2 tokens
  const auto pairs = [&](std::int64_t window) { return batch.pairs_within(window); };
  EXPECT_EQ(pairs(kNoWindow), 13 * 7 + 1 + 20 * 21 / 2 + 3);
  EXPECT_EQ(pairs(5), (15 + 8 * 5) + 1 + (15 + 15 * 5) + 3);
  EXPECT_EQ(pairs(64), pairs(kNoWindow));
  const double whole = model_flops(lowered, kTinyShape, 36, pairs);
  double per_pair = 0;
  for (program::Program& p : lowered.set.programs)
    for (program::Node& node : p.nodes)
      if (p.name == kFirst && node.place.layer == 1 && node.cost.flops_per_pair > 0) {
        node.cost.window = 5;
        per_pair += node.cost.flops_per_pair;
      }
  EXPECT_GT(per_pair, 0);
  EXPECT_DOUBLE_EQ(whole - model_flops(lowered, kTinyShape, 36, pairs), per_pair * (pairs(kNoWindow) - pairs(5)));
}

LoweringOptions masked_options() {
  return {.batch = kTinyShape, .accumulate = true, .logits = true, .optim = {.weight_decay = 0}, .seed = 5};
}

// Two answers in one document, the last tokens of another, and one that is context from end to end.
Documents conversations(std::int64_t vocab) {
  Documents all = {random_document(1, 15, vocab), random_document(2, 9, vocab), random_document(3, 11, vocab)};
  const auto mask = [&](std::size_t d, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) all[d][i] = data::as_context(all[d][i]);
  };
  mask(0, 0, 4);
  mask(0, 7, 11);
  mask(1, 0, 6);
  mask(2, 0, 11);
  return all;
}

class Masked : public ::testing::Test {
 protected:
  double loss_of(Engine& engine, const Documents& documents) {
    engine.upload(batch_of(kTinyShape, documents));
    return engine.evaluate();
  }
  std::vector<float> gradient_of(Engine& engine, const std::vector<Documents>& micro) {
    engine.set_step(0, 0, 1, 0);
    for (std::size_t i = 0; i < micro.size(); ++i) {
      engine.upload(batch_of(kTinyShape, micro[i]));
      engine.micro_step(i == 0);
    }
    return array_of(engine, optim::kGradients);
  }
  config::Model model_ = tiny_model("llama");
  device::CpuDevice device_{2};
};

TEST_F(Masked, TheLossIsThatOfTheLearnedTokens) {
  TinyEngine engine(model_, masked_options(), device_);
  const Documents documents = conversations(model_.vocab);
  const data::Batch batch = batch_of(kTinyShape, documents);
  EXPECT_EQ(batch.pairs, 3 + 4 + 3);
  const double loss = loss_of(engine, documents);
  const std::vector<float> logits = engine.logits();
  const auto v = static_cast<std::size_t>(model_.vocab);
  double expected = 0;
  std::size_t at = 0;
  for (const auto& d : documents)
    for (std::size_t i = 0; i < d.size(); ++i, ++at) {
      EXPECT_EQ(batch.tokens[at], data::token_id(d[i]));
      if (i + 1 == d.size() || data::is_context(d[i + 1])) continue;
      double sum = 0;
      for (std::size_t k = 0; k < v; ++k) sum += std::exp(static_cast<double>(logits[at * v + k]));
      expected += std::log(sum) - static_cast<double>(logits[at * v + static_cast<std::size_t>(d[i + 1])]);
    }
  EXPECT_GT(expected, 10);
  EXPECT_NEAR(loss, expected, 1e-4 * expected);
}

TEST_F(Masked, PackedDocumentsLoseWhatTheyLoseAlone) {
  TinyEngine engine(model_, masked_options(), device_);
  const Documents documents = conversations(model_.vocab);
  double alone = 0;
  for (const auto& d : documents) alone += loss_of(engine, {d});
  EXPECT_EQ(loss_of(engine, {documents[2]}), 0.0);
  EXPECT_NEAR(loss_of(engine, documents), alone, 1e-5 * alone);
}

TEST_F(Masked, MicroBatchesCountByTheirLearnedTokens) {
  TinyEngine engine(model_, masked_options(), device_);
  const Documents d = conversations(model_.vocab);
  const std::vector<float> together = gradient_of(engine, {d}), apart = gradient_of(engine, {{d[2]}, {d[0]}, {d[1]}});
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < together.size(); ++i) {
    difference += std::pow(static_cast<double>(together[i]) - apart[i], 2);
    norm += std::pow(static_cast<double>(together[i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
}

TEST_F(Masked, AStepWithNothingToLearnChangesNothing) {
  TinyEngine engine(model_, masked_options(), device_);
  const Documents d = conversations(model_.vocab);
  const std::vector<float> before = array_of(engine, optim::kParameters);
  engine.upload(batch_of(kTinyShape, {d[2]}));
  engine.set_step(0, 1e-2, 0, 0);
  engine.micro_step(true);
  engine.update();
  EXPECT_TRUE(array_of(engine, optim::kParameters) == before);
  for (const auto moments : {optim::kFirstMoments, optim::kSecondMoments})
    for (const float m : array_of(engine, moments)) ASSERT_EQ(m, 0.0f);
}

}  // namespace
}  // namespace redline::model
