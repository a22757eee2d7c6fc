// Whole models on a card against the CPU: gradients and losses agree as far as the precision allows, graphs and
// repetition change no bit, nor does recompute in the deterministic mode, a run goes on from copied state as if never
// stopped, documents do not see each other, and every attention serves batches of both kinds.
#include "model/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "model/tiny.h"
#include "ops/cuda/attention_backends.h"
#include "optim/adamw.h"
#include "testing/on_card.h"

namespace redline::model {
namespace {

using namespace redline::testing;

constexpr int kSteps = 3, kManySteps = 12;
constexpr double kLr = 1e-3;

struct ModelCase {
  const char* name;
  const char* family;
  bool tied;
  double dropout;
  std::int64_t head_dim;
};
const ModelCase kModelCases[] = {
    {"llama", "llama", false, 0, 10},        {"llama_tied_dropout", "llama", true, 0.2, 64},
    {"qwen3", "qwen3", true, 0, 10},         {"qwen3_wide_dropout", "qwen3", false, 0.2, 128},
    {"olmo2", "olmo2", false, 0, 10},        {"olmo2_wide_dropout", "olmo2", true, 0.2, 128},
    {"olmoe", "olmoe", false, 0, 10},        {"olmoe_wide_dropout", "olmoe", true, 0.2, 64},
    {"qwen3_moe", "qwen3_moe", true, 0, 10}, {"qwen3_moe_wide", "qwen3_moe", false, 0, 128},
    {"mixtral", "mixtral", false, 0, 10},    {"mixtral_wide", "mixtral", true, 0, 64},
    {"qwen2", "qwen2", true, 0, 10},         {"qwen2_wide_dropout", "qwen2", false, 0.2, 64},
    {"mistral", "mistral", false, 0, 10},    {"mistral_wide_dropout", "mistral", true, 0.2, 128},
    {"smollm3", "smollm3", true, 0, 10},     {"smollm3_wide", "smollm3", false, 0, 64},
    {"olmo3", "olmo3", false, 0, 10},        {"olmo3_wide_dropout", "olmo3", true, 0.2, 128},
    {"gemma3", "gemma3", true, 0, 10},       {"gemma3_256_dropout", "gemma3", false, 0.2, 256}};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

LoweringOptions card_options(DType compute, bool graphs = true, device::Kind kind = device::Kind::cuda) {
  LoweringOptions o;
  o.batch = kCardShape;
  o.logits = true;
  o.compute = compute;
  o.loss_chunk = 64;  // three chunks
  o.seed = 5;
  o.execution.graphs = graphs;
  o.kind = kind;
  return o;
}

// Rows that are one document each, which has kernels and graphs of its own.
data::Batch full_batch(const data::BatchShape& shape, std::int64_t vocab, std::uint64_t key) {
  data::Batch batch(shape);
  batch.clear();
  for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(shape.rows); ++row)
    EXPECT_TRUE(batch.append(random_document(100 + 10 * key + row, shape.seq_len, vocab)));
  EXPECT_TRUE(batch.full_rows());
  return batch;
}

struct Likeness {
  double cosine, relative_error;
};
Likeness compare(std::span<const float> a, std::span<const float> b) {
  double diff = 0, aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = a[i], y = b[i];
    diff += (x - y) * (x - y);
    aa += x * x;
    bb += y * y;
    ab += x * y;
  }
  return {ab / std::sqrt(aa * bb), std::sqrt(diff / bb)};
}

// One step over two micro-batches; returns the loss sum.
double step_of_two(Engine& engine, int index) {
  const std::int64_t vocab = engine.model().vocab;
  std::int64_t pairs = 0;
  for (const int micro : {0, 1}) {
    const data::Batch batch = card_batch(vocab, static_cast<std::uint64_t>(2 * index + micro));
    pairs += batch.pairs;
    engine.upload(batch);
    engine.set_step(static_cast<std::uint64_t>(index), kLr, 0, static_cast<std::uint64_t>(micro * kCardShape.tokens()));
    engine.micro_step(micro == 0);
  }
  engine.set_step(static_cast<std::uint64_t>(index), kLr, static_cast<double>(pairs), 0);
  engine.update();
  engine.post_result();
  EXPECT_EQ(engine.take_result().update.finite, 1.0f);
  return engine.loss_sum();
}

class ModelsOnCard : public OnCard<::testing::TestWithParam<ModelCase>> {
 protected:
  ModelsOnCard() : model_(tiny_model(GetParam().family, GetParam().tied)) {
    model_.dropout = GetParam().dropout;
    model_.head_dim = GetParam().head_dim;
    // Scores as large as the tiny model's: those of normed heads of 256 would be near 100, too coarse in bf16.
    model_.query_pre_attn_scalar = model_.query_pre_attn_scalar * model_.head_dim / 10;
    if (model_.experts == 0) return;
    model_.router_aux = 0.01, model_.router_z_loss = 0.001;
    if (model_.head_dim > 10) model_.expert_ffn = 40;  // rows of 16 bytes, which products of warp groups want
  }
  // Initialised where it stands: executors hold references into an engine.
  struct Made : Engine {
    Made(const config::Model& model, const LoweringOptions& o, device::Device& device) : Engine(model, o, device) {
      initialise(3);
    }
  };
  Made engine_on_card(DType compute, bool graphs = true) { return {model_, card_options(compute, graphs), card()}; }
  Made engine_on_cpu() { return {model_, card_options(DType::f32, true, device::Kind::cpu), cpu_}; }
  config::Model model_;
  device::CpuDevice cpu_{2};
};

TEST_P(ModelsOnCard, AgreeWithTheCpuInFp32) {
  Made ours = engine_on_card(DType::f32), cpu = engine_on_cpu();
  for (Made* engine : {&ours, &cpu}) engine->upload(card_batch(model_.vocab));
  EXPECT_LT(compare(ours.logits(), cpu.logits()).relative_error, 1e-4);
  EXPECT_NEAR(ours.evaluate() / cpu.evaluate(), 1, 1e-5);
  for (int i = 0; i < (model_.experts > 0 ? kManySteps : kSteps); ++i) {
    EXPECT_NEAR(step_of_two(ours, i) / step_of_two(cpu, i), 1, 1e-4) << "step " << i;
    if (i > 0) continue;  // later ones are of other parameters
    EXPECT_LT(compare(array_of(ours, optim::kGradients), array_of(cpu, optim::kGradients)).relative_error, 1e-4);
  }
}

// Of experts every token takes all: rounding sends none to another one.
TEST_P(ModelsOnCard, AgreeWithTheCpuInBf16) {
  model_.experts_per_token = model_.experts;
  Made ours = engine_on_card(DType::bf16), cpu = engine_on_cpu();
  for (Made* engine : {&ours, &cpu}) engine->upload(card_batch(model_.vocab));
  EXPECT_LT(compare(ours.logits(), cpu.logits()).relative_error, 5e-2);
  EXPECT_NEAR(ours.evaluate() / cpu.evaluate(), 1, 2e-2);
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(step_of_two(ours, i) / step_of_two(cpu, i), 1, 2e-2) << "step " << i;
    if (i > 0) continue;
    EXPECT_GE(compare(array_of(ours, optim::kGradients), array_of(cpu, optim::kGradients)).cosine, 0.999);
  }
}

TEST_P(ModelsOnCard, GraphsAndRepetitionChangeNoBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::vector<std::vector<float>> parameters;
    std::vector<double> losses;
    for (const bool graphs : {true, false, true}) {
      Made engine = engine_on_card(compute, graphs);
      double loss = 0;
      for (int i = 0; i < kSteps; ++i) loss = step_of_two(engine, i);
      losses.push_back(loss);
      parameters.push_back(array_of(engine, optim::kParameters));
    }
    EXPECT_EQ(losses[0], losses[1]) << name_of(compute);
    EXPECT_EQ(losses[0], losses[2]) << name_of(compute);
    EXPECT_TRUE(parameters[0] == parameters[1]) << name_of(compute) << ": with and without graphs";
    EXPECT_TRUE(parameters[0] == parameters[2]) << name_of(compute) << ": twice the same";
  }
}

TEST_P(ModelsOnCard, RecomputeChangesNoBitOfADeterministicStep) {
  for (const bool full_rows : {false, true}) {
    const data::Batch batch = full_rows ? full_batch(kCardShape, model_.vocab, 1) : card_batch(model_.vocab);
    std::vector<float> kept;
    for (const auto what : {program::Recompute::none, program::Recompute::mlp, program::Recompute::block}) {
      LoweringOptions o = card_options(DType::bf16);
      o.recompute = what;
      o.products.bits = o.attention.bits = ops::Bits::repeat;
      Made engine(model_, o, card());
      engine.upload(batch);
      engine.set_step(0, kLr, 32, 0);
      std::vector<float> gradients[2];
      for (std::vector<float>& of_turn : gradients) {  // node by node, then replayed
        for (const bool first : {true, false}) {
          engine.executor().poison_transients();
          engine.micro_step(first);
        }
        of_turn = array_of(engine, optim::kGradients);
      }
      EXPECT_TRUE(gradients[0] == gradients[1]) << "full rows: " << full_rows;
      if (what == program::Recompute::none) kept = gradients[0];
      EXPECT_TRUE(gradients[0] == kept) << "full rows: " << full_rows;
    }
  }
}

// State, gradients and weights in the host's memory change no bit of a deterministic run, node by node or replayed, nor
// of one that leaves an update out.
TEST_P(ModelsOnCard, WhatLiesInTheHostsMemoryChangesNoBit) {
  const config::Placement state{.moments = true, .masters = true};
  config::Placement all = state, some{.moments = true, .moment_layers = 1};
  all.gradients = all.weights = true;
  std::vector<double> losses;
  std::vector<float> parameters;
  for (const config::Placement& placement : {config::Placement{}, state, all, some}) {
    LoweringOptions o = card_options(DType::bf16);
    o.products.bits = o.attention.bits = ops::Bits::repeat;
    o.optim.clip = 0.3;
    o.placement = placement;
    Made engine(model_, o, card());
    std::vector<double> seen;
    for (int i = 0; i < kSteps; ++i) seen.push_back(step_of_two(engine, i));
    step_without_update(engine, card_batch(model_.vocab), kSteps);
    seen.push_back(step_of_two(engine, kSteps + 1));
    const std::vector<float> after = array_of(engine, optim::kParameters);
    if (!placement.on_host()) losses = seen, parameters = after;
    EXPECT_EQ(seen, losses);
    EXPECT_TRUE(after == parameters);
  }
}

// Masters in bf16: graphs, repetition and moments in the host's memory change no bit, and a run is near that of fp32.
TEST_P(ModelsOnCard, MastersInBf16RepeatAndStayNear) {
  std::vector<double> losses, fp32;
  std::vector<float> parameters;
  Made wide = engine_on_card(DType::bf16);
  for (int i = 0; i < kSteps; ++i) fp32.push_back(step_of_two(wide, i));
  for (const auto& [graphs, moments] : {std::pair{true, false}, {false, false}, {true, true}}) {
    LoweringOptions o = card_options(DType::bf16);
    o.products.bits = o.attention.bits = ops::Bits::repeat;
    o.masters = DType::bf16;
    o.execution.graphs = graphs;
    o.placement.moments = moments;
    Made engine(model_, o, card());
    std::vector<double> seen;
    for (int i = 0; i < kSteps; ++i) seen.push_back(step_of_two(engine, i));
    const std::vector<float> after = array_of(engine, optim::kParameters);
    if (losses.empty()) losses = seen, parameters = after;
    EXPECT_EQ(seen, losses) << graphs << moments;
    EXPECT_TRUE(after == parameters) << graphs << moments;
  }
  for (std::size_t i = 0; i < fp32.size(); ++i) EXPECT_NEAR(losses[i], fp32[i], 0.02 * fp32[i]) << i;
}

TEST_P(ModelsOnCard, ARunGoesOnFromCopiedState) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Made whole = engine_on_card(compute);
    Engine resumed(model_, card_options(compute), card());
    step_of_two(whole, 0);
    for (const std::string_view array : {optim::kParameters, optim::kFirstMoments, optim::kSecondMoments}) {
      const std::vector<float> state = array_of(whole, array);
      const auto bytes = static_cast<std::int64_t>(state.size() * sizeof(float));
      resumed.executor().write(resumed.lowered().at(array), state.data(), bytes);
    }
    if (compute != DType::f32) resumed.executor().run(kRefresh);
    for (int i = 1; i < kSteps; ++i) EXPECT_EQ(step_of_two(whole, i), step_of_two(resumed, i)) << name_of(compute);
    EXPECT_TRUE(array_of(whole, optim::kParameters) == array_of(resumed, optim::kParameters)) << name_of(compute);
  }
}

// After a rehearsal nothing is chosen, tuned or captured any more, whatever kind of batch comes; and it changes no bit.
TEST_P(ModelsOnCard, ARehearsalLeavesNothingToChooseAndChangesNothingThatStays) {
  LoweringOptions o = card_options(DType::bf16);
  o.products.bits = o.attention.bits = ops::Bits::repeat;
  for (const bool full_rows : {false, true}) {
    device::CudaDevice own;  // with nothing chosen on it yet
    Made rehearsed(model_, o, own);
    rehearsed.rehearse(full_rows ? full_batch(kCardShape, model_.vocab, 1) : card_batch(model_.vocab));
    Made other(model_, o, own);  // what is chosen belongs to the card
    std::vector<std::string> notes;
    const log::Listener listener([&](bool, std::string_view text) { notes.emplace_back(text); });
    for (int i = 0; i < 2; ++i) EXPECT_EQ(step_of_two(rehearsed, i), step_of_two(other, i));
    rehearsed.upload(full_batch(kCardShape, model_.vocab, 2));
    rehearsed.set_step(0, kLr, 0, 0);
    for (const bool first : {true, false}) rehearsed.micro_step(first);
    EXPECT_EQ(notes, std::vector<std::string>{}) << "full rows: " << full_rows;
    for (const auto array : {optim::kParameters, optim::kFirstMoments, optim::kSecondMoments})
      EXPECT_TRUE(array_of(rehearsed, array) == array_of(other, array)) << array;
  }
}

// The times of steps are the card's own: a host that stalls while a step runs does not make the next one faster.
TEST_P(ModelsOnCard, StepsAreTimedByTheCard) {
  Made engine = engine_on_card(DType::bf16);
  const auto queue = [&](int index) {
    engine.upload(card_batch(model_.vocab));
    engine.set_step(static_cast<std::uint64_t>(index), kLr, 100, 0);
    engine.micro_step(true);
    engine.update();
    engine.post_result();
  };
  for (int i = 0; i < 2; ++i) {  // captured, then replayed
    queue(i);
    engine.take_result();
  }
  engine.clock().restart();
  queue(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  queue(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const StepTime first = engine.take_result().time, second = engine.take_result().time;
  for (const StepTime& t : {first, second}) {
    EXPECT_GT(t.working, 0);
    EXPECT_LT(t.working, 0.15);
    EXPECT_GE(t.seconds, t.working);
  }
  EXPECT_LT(first.seconds, 0.15);
  EXPECT_GE(second.seconds, 0.19);
}

TEST_P(ModelsOnCard, NoNodeReadsWhatNothingWrote) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Made engine = engine_on_card(compute);
    engine.upload(card_batch(model_.vocab));
    engine.set_step(0, 1e-3, 32, 0);
    std::vector<std::vector<float>> seen[2];
    for (const int poisoned : {0, 1}) {
      const auto poison = [&] {
        if (poisoned) engine.executor().poison_transients();
      };
      for (const bool first : {true, false}) {
        poison();
        engine.micro_step(first);
        seen[poisoned].push_back(array_of(engine, optim::kGradients));
      }
      poison();
      seen[poisoned].push_back(engine.logits());
      poison();
      seen[poisoned].push_back({static_cast<float>(engine.evaluate())});
    }
    for (std::size_t i = 0; i < seen[0].size(); ++i)
      EXPECT_TRUE(seen[0][i] == seen[1][i]) << name_of(compute) << ", program " << i;
  }
}

TEST_P(ModelsOnCard, DocumentsCannotSeeEachOther) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(compute));
    Made engine = engine_on_card(compute);
    expect_documents_apart(engine, card_batch(model_.vocab));
  }
}

TEST_P(ModelsOnCard, PlansAreWhatIsAllocated) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    Made engine = engine_on_card(compute);
    step_of_two(engine, 0);
    EXPECT_EQ(card().allocated_bytes(), engine.programs().memory.device.total);
  }
  EXPECT_EQ(card().allocated_bytes(), 0);
}

// Each attention in captured graphs: batches of full rows and of documents take turns, and none is the one that the
// graph was made with.
class AttentionOnCard : public OnCard<::testing::TestWithParam<const char*>> {};

TEST_P(AttentionOnCard, ServesFullRowsAndDocumentsInTurn) {
  constexpr data::BatchShape kRows{.rows = 2, .seq_len = 128, .max_segments = 4};
  const std::string attention = GetParam();
  config::Model model = tiny_model("qwen3");
  model.head_dim = 64;
  LoweringOptions o = card_options(DType::bf16), on_cpu = card_options(DType::f32);
  o.batch = on_cpu.batch = kRows;
  o.attention.by = ops::attention_by(attention);
  on_cpu.kind = device::Kind::cpu;
  const ops::cuda::AttentionCase this_card{.layout = {model.heads, model.kv_heads, 64}, .major = card().launch().major};
  const std::string why_not = attention == "cudnn"    ? ops::cuda::cudnn_problem()
                              : attention == "hopper" ? ops::cuda::hopper_why_not(this_card)
                                                      : "";
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  device::CpuDevice cpu_device(2);
  Engine ours(model, o, card()), cpu(model, on_cpu, cpu_device);
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::int64_t few = 1 + static_cast<std::int64_t>(i);
    const data::Batch batch =
        i % 2 == 0
            ? full_batch(kRows, model.vocab, i)
            : batch_of(kRows, {random_document(10 * i, 128, model.vocab), random_document(10 * i + 1, 1, model.vocab),
                               random_document(10 * i + 2, 7 * few, model.vocab),
                               random_document(10 * i + 3, 64, model.vocab)});
    double losses[2];
    std::vector<float> gradients[2];
    for (const int which : {0, 1}) {
      Engine& engine = which == 0 ? ours : cpu;
      if (i == 0) engine.initialise(3);
      engine.upload(batch);
      engine.set_step(0, kLr, 32, 0);
      engine.micro_step(true);
      losses[which] = engine.loss_sum();
      gradients[which] = array_of(engine, optim::kGradients);
    }
    EXPECT_NEAR(losses[0] / losses[1], 1, 2e-2) << "batch " << i;
    EXPECT_GE(compare(gradients[0], gradients[1]).cosine, 0.999) << "batch " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionOnCard, ::testing::Values("auto", "cudnn", "hopper", "flash", "reference"));

INSTANTIATE_TEST_SUITE_P(Tiny, ModelsOnCard, ::testing::ValuesIn(kModelCases),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace redline::model
