// State in the host's memory, and values of layers that lie there meanwhile or are computed again: a run has the bits
// that it has without, for every optimizer and type of moments, with averages, products in eight bits, accumulation and
// updates that were left out; the device holds less by what moved.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>

#include "base/signals.h"
#include "model/state_files.h"
#include "model/tiny_fp8.h"
#include "optim/adamw.h"
#include "program/program.h"
#include "testing/check_plan.h"
#include "testing/thread_group.h"

namespace redline::model {
namespace {

using namespace redline::testing;

const config::Placement kMoments{.moments = true}, kAllState{.moments = true, .masters = true, .averages = true};
const config::Placement kSomeMoments{.moments = true, .moment_layers = 1}, kCopies{.copies = true},
    kCopiesAndMoments{.moments = true, .moment_layers = 1, .copies = true};
const config::Placement kGradients{.gradients = true}, kWeights{.weights = true},
    kAll{.moments = true, .masters = true, .averages = true, .gradients = true, .weights = true};

constexpr std::int32_t kNoLayerYet = -1;

struct OffloadCase {
  const char* name;
  const Optimizer* optimizer = &kAdamW;
  const char* moments = "fp32";
  DType compute = DType::bf16;
  bool fp8 = false, average = false;
  const char* family = "";
  DType gradients = DType::f32, masters = DType::f32;
};
void PrintTo(const OffloadCase& c, std::ostream* out) { *out << c.name; }

config::Model offloaded_model(const OffloadCase& c) {
  const std::string family = *c.family ? c.family : c.fp8 ? "llama" : "qwen3";
  config::Model m = c.fp8 ? tiny_fp8_model(family) : tiny_model(family);
  if (m.experts > 0) m.router_aux = 0.1;
  return m;
}

LoweringOptions offload_options(const OffloadCase& c, const config::Placement& placement) {
  LoweringOptions o;
  if (c.fp8) o = fp8_options(offloaded_model(c), kTinyShape);
  o.batch = kTinyShape;
  o.compute = c.compute;
  o.average = c.average;
  o.optimizer = c.optimizer;
  o.gradients = c.gradients;
  o.masters = c.masters;
  o.optim.clip = 0.3;
  o.optim.moments = c.moments;
  o.spike = 100;
  o.norms = true;
  if (c.optimizer == &kNorMuon) o.optim.muon_beta2 = 0.9;
  o.placement = placement;
  if (!o.has_copies()) o.placement.masters = false;
  return o;
}

std::vector<std::byte> state_bytes_of(Engine& engine) {
  return all_bytes(
      engine, [&](std::span<const StateTensor> tensors, const TakeBytes& take) { read_state(tensors, engine, take); });
}

// Steps of two micro-batches; the update of one of them is left out, since a gradient is no number.
void train_some(Engine& engine, int steps) {
  for (int step = 0; step < steps; ++step) {
    double pairs = 0;
    engine.executor().poison_transients();
    for (const int micro : {0, 1}) {
      const data::Batch batch =
          tiny_batch(engine.model().vocab, static_cast<std::uint64_t>(2 * step + micro), kTinyShape);
      engine.upload(batch);
      engine.set_step(static_cast<std::uint64_t>(step), 1e-2, 0, 0);
      engine.micro_step(micro == 0, micro == 1);
      pairs += static_cast<double>(batch.pairs);
    }
    const bool spoiled = step == 2;
    if (spoiled)  // of whatever type: all bits of a few elements
      std::fill_n(engine.executor().tensor(engine.lowered().at(optim::kGradients)).as<std::uint8_t>() + 32, 8, 0xFF);
    engine.set_step(static_cast<std::uint64_t>(step), 1e-2, pairs, 0, step == 0 ? 1 : 0.25);
    engine.executor().poison_transients();
    if (step == 3)
      engine.update_with_norms();
    else
      engine.update();
    engine.post_result();
    EXPECT_EQ(engine.take_result().update.finite, spoiled ? 0.0f : 1.0f);
  }
}

class Offload : public ::testing::TestWithParam<OffloadCase> {};

TEST_P(Offload, HasTheBitsOfARunWithout) {
  const OffloadCase& c = GetParam();
  const config::Model model = offloaded_model(c);
  device::CpuDevice device(2);
  std::vector<std::byte> want;
  double want_loss = 0;
  std::vector<double> want_norms;
  std::int64_t persistent = 0;
  for (const config::Placement& placement : {config::Placement{}, kMoments, kAllState, kGradients, kWeights, kAll,
                                             kSomeMoments, kCopies, kCopiesAndMoments}) {
    const LoweringOptions options = offload_options(c, placement);
    if (placement.moment_layers > 0 && !cuts_moments(options)) continue;
    if (placement.copies && !can_make_copies(model, options)) continue;
    TinyEngine engine(model, options, device);
    EXPECT_EQ(!engine.lowered().cuts.empty(), placement.moment_layers > 0 || placement.copies);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    const program::MemoryPlan& memory = engine.programs().memory;
    train_some(engine, 5);
    EXPECT_TRUE(engine.parameters_finite());
    const std::vector<double> norms = engine.norm_sums().weights;
    const double loss = c.average ? loss_of_average(engine) : engine.evaluate();
    const std::vector<std::byte> got = state_bytes_of(engine);
    if (placement == config::Placement{}) {
      want = got;
      want_loss = loss;
      want_norms = norms;
      persistent = memory.device.persistent;
      EXPECT_EQ(memory.host.beyond_results(), 0);
      continue;
    }
    EXPECT_EQ(got, want);
    EXPECT_EQ(loss, want_loss);
    EXPECT_EQ(norms, want_norms);
    EXPECT_LT(memory.device.persistent, persistent);
    if (placement.copies) continue;  // which no memory has
    EXPECT_NEAR(static_cast<double>(memory.device.persistent + memory.host.persistent), static_cast<double>(persistent),
                65536.0)
        << "what left the device lies in the host's memory, and results of pieces beside it";
  }
}

// Updates are made beside the next forward pass, unless something comes before it that would see the difference.
TEST_P(Offload, AnUpdateIsThereForWhateverComesNext) {
  const OffloadCase& c = GetParam();
  const config::Model model = offloaded_model(c);
  device::CpuDevice device(2);
  TinyEngine here(model, offload_options(c, {}), device), away(model, offload_options(c, kAllState), device);
  ASSERT_TRUE(away.lowered().late_state.present());
  ASSERT_FALSE(here.lowered().late_state.present());
  for (int step = 0; step < 5; ++step) {
    for (Engine* const engine : {static_cast<Engine*>(&here), static_cast<Engine*>(&away)})
      step_on(*engine, tiny_batch(model.vocab, static_cast<std::uint64_t>(step), kTinyShape), step, 1e-2);
    if (step == 1) {
      EXPECT_EQ(away.evaluate(), here.evaluate());
    }
    if (step == 2) {
      EXPECT_EQ(state_bytes_of(away), state_bytes_of(here));
    }
    if (step == 3) {  // and a state that is loaded is not moved by an update from before
      here.initialise(7);
      away.initialise(7);
      EXPECT_EQ(state_bytes_of(away), state_bytes_of(here));
    }
  }
  EXPECT_TRUE(away.parameters_finite());
  EXPECT_EQ(state_bytes_of(away), state_bytes_of(here));
}

// A step that is dropped begins with the update of the one before, which is done and stays.
TEST_P(Offload, AStepIsDroppedThatWouldMakeALateUpdate) {
  const OffloadCase& c = GetParam();
  const config::Model model = offloaded_model(c);
  device::CpuDevice device(2);
  TinyEngine here(model, offload_options(c, {}), device), away(model, offload_options(c, kAllState), device);
  for (Engine* const engine : {static_cast<Engine*>(&here), static_cast<Engine*>(&away)}) {
    step_on(*engine, tiny_batch(model.vocab, 0, kTinyShape), 0, 1e-2);
    const StopFlag stop = 2;
    engine->drop_on(&stop);
    engine->upload(tiny_batch(model.vocab, 1, kTinyShape));
    engine->set_step(1, 1e-2, 0, 0);
    EXPECT_THROW(engine->micro_step(true), Interrupted);
    engine->drop_on(nullptr);
  }
  EXPECT_EQ(state_bytes_of(away), state_bytes_of(here));
  for (Engine* const engine : {static_cast<Engine*>(&here), static_cast<Engine*>(&away)})
    step_on(*engine, tiny_batch(model.vocab, 1, kTinyShape), 1, 1e-2);
  EXPECT_EQ(state_bytes_of(away), state_bytes_of(here));
}

// The nodes of an update stand all over the forward pass, and none behind it.
TEST_P(Offload, UpdatesStandBesideTheNextForwardPass) {
  config::Model model = offloaded_model(GetParam());
  model.layers = 6;
  const LoweredModel m = lower(model, offload_options(GetParam(), kAllState));
  std::map<std::int32_t, int> before;  // by layer: updates since the layer before
  std::int32_t layer = kNoLayerYet;
  bool back = false;
  for (const program::Node& node : m.set.find(kUpdateAndFirst).nodes) {
    back = back || node.phase == program::Phase::backward;
    if (node.phase == program::Phase::forward) layer = std::max(layer, node.place.layer);
    if (node.phase != program::Phase::update || node.when != program::When::now) continue;
    EXPECT_FALSE(back) << node.name;
    ++before[layer];
  }
  EXPECT_GE(before.size(), 3u) << "of 6 layers";
}

// A node of Muon has matrices of all layers: where products read some of them in bf16, none is made.
TEST(OffloadOfCopies, OfMuonAreThoseOfAllMatrices) {
  const config::Model model = tiny_fp8_model("llama");
  for (const Optimizer* optimizer : {&kAdamW, &kMuon}) {
    LoweringOptions o = offload_options({"", optimizer, "fp32", DType::bf16, true}, {});
    EXPECT_TRUE(can_make_copies(model, o));
    std::erase_if(o.fp8, [](const std::string& product) { return !product.starts_with("qkv/"); });
    EXPECT_EQ(can_make_copies(model, o), optimizer == &kAdamW);
  }
}

// The norm that ends a step changes what is usual, which is saved, before a late update changes all else.
TEST(OffloadOfState, WhateverChangesSavedRowsWaitsForCopiesOfThem) {
  const OffloadCase c{"usual norm"};
  device::CpuDevice device(1);
  for (const config::Placement& placement : {config::Placement{}, kMoments}) {
    Engine engine(offloaded_model(c), offload_options(c, placement), device);
    EXPECT_EQ(engine.changes_saved_rows(kNorm), placement.moments);
    EXPECT_EQ(engine.changes_saved_rows(kUpdateAndFirst), placement.moments);
    EXPECT_EQ(engine.changes_saved_rows(kFinish), placement.moments);
    EXPECT_TRUE(engine.changes_saved_rows(kUpdate));
    for (const std::string_view program : {kFirst, kAccumulate, kEvaluate, kCheck, kRefresh})
      EXPECT_FALSE(engine.changes_saved_rows(program)) << program;
  }
}

// A copy of the state is under way where a step ends, and nothing waits for it but what changes it.
TEST(OffloadOfState, ACopyOfItBetweenStepsChangesNoBit) {
  const OffloadCase c{"usual norm"};
  const config::Model model = offloaded_model(c);
  device::CpuDevice device(2);
  TinyEngine here(model, offload_options(c, {}), device);
  LoweredModel lowered = lower(model, offload_options(c, kMoments));
  add_snapshot(lowered, program::Memory::host);
  Engine away(model, offload_options(c, kMoments), std::move(lowered), device);
  away.initialise(3);
  SavedState saved(away);
  ASSERT_TRUE(away.has_snapshot());
  for (int step = 0; step < 6; ++step) {
    for (Engine* const engine : {static_cast<Engine*>(&here), &away}) {
      const data::Batch batch = tiny_batch(model.vocab, static_cast<std::uint64_t>(step), kTinyShape);
      if (step == 3)
        step_without_update(*engine, batch, step);
      else
        step_on(*engine, batch, step, 1e-2 / (1 + step));
    }
    const std::vector<std::byte> want = state_bytes_of(here);
    if (step == 5) {
      EXPECT_EQ(state_bytes_of(away), want);
    } else if (step % 2 == 1) {  // which the next step finds under way
      saved.take();
    }
  }
}

// Whoever looks at weights in eight bits looks at those of the update that was to be made late.
TEST(OffloadOfMoments, WeightsInEightBitsAreSeenAfterTheirUpdate) {
  const OffloadCase c{.name = "fp8", .fp8 = true};
  const config::Model model = offloaded_model(c);
  device::CpuDevice device(2);
  std::vector<std::vector<Fp8Seen>> seen;
  for (const config::Placement& placement : {config::Placement{}, kMoments}) {
    TinyEngine engine(model, offload_options(c, placement), device);
    step_on(engine, tiny_batch(model.vocab, 1, kTinyShape), 0, 1e-2);
    engine.upload(tiny_batch(model.vocab, 2, kTinyShape));
    engine.set_step(1, 1e-2, 0, 0);
    seen.push_back(engine.watched_micro_step(true));
  }
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (std::size_t i = 0; i < seen[0].size(); ++i) {
    const Fp8Seen &here = seen[0][i], &away = seen[1][i];
    EXPECT_EQ(std::tie(here.name, here.scale, here.amax, here.saturated, here.zero),
              std::tie(away.name, away.scale, away.amax, away.saturated, away.zero))
        << here.name;
  }
}

// Casts follow the update of their layer, also where no activations give copies of all layers room.
TEST(OffloadOfCopies, LiveLayerByLayerInEveryUpdate) {
  config::Model model = tiny_fp8_model("llama");
  std::map<std::string_view, std::int64_t> before;
  for (const std::int64_t layers : {4, 8}) {
    model.layers = layers;
    LoweringOptions o = fp8_options(model, kTinyShape);
    o.placement = kCopies;
    o.norms = true;
    const LoweredModel m = lower(model, o);
    for (std::size_t i = 0; i < m.set.programs.size(); ++i) {
      const std::string& name = m.set.programs[i].name;
      const std::int64_t bytes = m.set.memory.device.transient_by_program[i];
      if (name != kUpdate && name != kRefresh) continue;
      EXPECT_GT(bytes, 0) << name;
      const auto [it, fresh] = before.try_emplace(name == kUpdate ? kUpdate : kRefresh, bytes);
      EXPECT_LT(bytes, it->second + it->second / 4) << name;
    }
  }
  EXPECT_EQ(before.size(), 2u);
}

// Those of each layer more are the host's, up to all but what stands before the first one.
TEST(OffloadOfMoments, OfMoreLayersLeaveTheDevice) {
  for (const char* moments : {"fp32", "8bit"}) {
    config::Model model = tiny_fp8_model("llama");
    model.layers = 4;
    std::int64_t before = 0;
    for (const std::int64_t layers : {1, 2, 3, 4}) {
      const LoweredModel m =
          lower(model, offload_options({"", &kAdamW, moments}, {.moments = true, .moment_layers = layers}));
      const std::int64_t host = m.set.memory.host.persistent;
      EXPECT_GT(host, before) << layers;
      before = host;
      for (const program::Program& p : m.set.programs)
        for (const program::Node& node : p.nodes)
          if (const auto* const adamw = std::get_if<optim::AdamW<program::ValueId>>(&node.op)) {
            ASSERT_EQ(m.cuts.size(), 1u);
            EXPECT_TRUE(adamw->begin >= m.cuts[0] ||
                        adamw->begin + m.set.at(adamw->moment1).shape.elements() <= m.cuts[0]);
          }
    }
    EXPECT_GT(lower(model, offload_options({"", &kAdamW, moments}, kMoments)).set.memory.host.persistent, before);
  }
}

TEST_P(Offload, StagesAFewPiecesAtATime) {
  const OffloadCase& c = GetParam();
  LoweringOptions o = offload_options(c, kAllState);
  o.norms = false;  // which look at all weights at once
  const LoweredModel m = lower(offloaded_model(c), o);
  ASSERT_GT(m.piece, 0);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < m.set.programs.size(); ++i)
    if (m.set.programs[i].name == kRefresh || m.set.programs[i].name == kCheck)
      most = std::max(most, m.set.memory.device.transient_by_program[i]);
  if (c.compute == DType::f32) return;  // the parameters stay
  EXPECT_LE(most, 4 * aligned(4 * m.piece) + 65536);
}

TEST_P(Offload, AParameterThatIsNoNumberIsFoundInAnyPiece) {
  const OffloadCase& c = GetParam();
  device::CpuDevice device(1);
  TinyEngine engine(offloaded_model(c), offload_options(c, kAllState), device);
  const Tensor parameters = engine.executor().tensor(engine.lowered().at(optim::kParameters));
  const auto element = static_cast<std::int64_t>(size_of(parameters.dtype));
  for (const std::int64_t at : {std::int64_t{0}, parameters.elements() / 2, parameters.elements() - 1}) {
    // The upper half of a float, which is all that bf16 has.
    std::uint16_t& upper = *reinterpret_cast<std::uint16_t*>(parameters.as<std::byte>() + (at + 1) * element - 2);
    const std::uint16_t before = std::exchange(upper, bf16_from_f32(std::numeric_limits<float>::infinity()));
    EXPECT_FALSE(engine.parameters_finite()) << at;
    upper = before;
  }
  EXPECT_TRUE(engine.parameters_finite());
}

INSTANTIATE_TEST_SUITE_P(
    All, Offload,
    ::testing::Values(
        OffloadCase{"adamw"}, OffloadCase{"adamw_in_fp32", &kAdamW, "fp32", DType::f32, false, true},
        OffloadCase{"bf16_moments", &kAdamW, "bf16", DType::bf16, false, true},
        OffloadCase{"moments_of_8_bits", &kAdamW, "8bit"}, OffloadCase{"fp8", &kAdamW, "8bit", DType::bf16, true, true},
        OffloadCase{"muon", &kMuon, "fp32", DType::bf16, false, true},
        OffloadCase{"muon_bf16_in_fp32", &kMuon, "bf16", DType::f32},
        OffloadCase{"normuon", &kNorMuon, "fp32", DType::bf16},
        OffloadCase{"experts", &kAdamW, "fp32", DType::bf16, false, true, "olmoe"},
        OffloadCase{"experts_fp8", &kAdamW, "8bit", DType::bf16, true, true, "qwen3_moe"},
        OffloadCase{"experts_muon", &kMuon, "bf16", DType::bf16, false, true, "mixtral"},
        OffloadCase{"fp8_without_average", &kAdamW, "fp32", DType::bf16, true},
        OffloadCase{"muon_fp8", &kMuon, "fp32", DType::bf16, true},
        OffloadCase{"experts_fp8_without_average", &kAdamW, "8bit", DType::bf16, true, false, "qwen3_moe"},
        OffloadCase{"bf16_gradients", &kAdamW, "8bit", DType::bf16, true, true, "", DType::bf16},
        OffloadCase{"muon_bf16_gradients", &kMuon, "fp32", DType::f32, false, false, "", DType::bf16},
        OffloadCase{"bf16_masters", &kAdamW, "fp32", DType::bf16, false, false, "", DType::f32, DType::bf16},
        OffloadCase{"bf16_masters_fp8", &kAdamW, "8bit", DType::bf16, true, false, "", DType::bf16, DType::bf16},
        OffloadCase{"muon_bf16_masters", &kMuon, "bf16", DType::f32, false, false, "", DType::f32, DType::bf16}),
    [](const auto& of) { return std::string(of.param.name); });

// What is computed again, of how many layers, and where what is kept meanwhile lies, changes no bit either.
TEST(Recomputed, EveryKindOfAnyLayersHasTheBitsOfNone) {
  config::Model model = tiny_fp8_model("qwen3");
  model.layers = 5;
  device::CpuDevice device(2);
  const auto lowering = [&](program::Recompute what, std::int64_t layers, bool residuals) {
    LoweringOptions o = fp8_options(model, kTinyShape);
    o.recompute = what;
    o.recompute_layers = layers;
    o.placement.residuals = residuals;
    return o;
  };
  const auto state_after = [&](const LoweringOptions& o) {
    TinyEngine engine(model, o, device);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    train_some(engine, 2);
    return state_bytes_of(engine);
  };
  using program::Recompute;
  const std::vector<std::byte> want = state_after(lowering(Recompute::none, 0, false));
  for (const Recompute what : {Recompute::none, Recompute::mlp, Recompute::rest, Recompute::block})
    for (const std::int64_t layers : {0, 1, 3})
      for (const bool residuals : {false, true})
        EXPECT_EQ(state_after(lowering(what, layers, residuals)), want)
            << static_cast<int>(what) << ", " << layers << " layers, " << residuals;
}

TEST(Recomputed, FewerLayersAndLessAgainKeepMore) {
  config::Model model = tiny_model("llama");
  model.layers = 6;
  const auto lowered = [&](program::Recompute what, std::int64_t layers, bool residuals = false) {
    LoweringOptions o;
    o.batch = {.rows = 4, .seq_len = 256, .max_segments = 4};
    o.recompute = what;
    o.recompute_layers = layers;
    o.placement.residuals = residuals;
    return lower(model, o);
  };
  const auto on_device = [](const LoweredModel& m) { return m.set.memory.device.total; };
  const auto attentions = [](const LoweredModel& m) {
    return std::ranges::count_if(m.set.find(kFirst).nodes, [](const program::Node& n) {
      return std::holds_alternative<ops::Attention<program::ValueId>>(n.op);
    });
  };
  using program::Recompute;
  std::int64_t before = on_device(lowered(Recompute::none, 0));
  for (const std::int64_t layers : {1, 2, 3, 4, 5}) {
    const std::int64_t now = on_device(lowered(Recompute::block, layers));
    EXPECT_LT(now, before) << layers;
    before = now;
  }
  EXPECT_EQ(on_device(lowered(Recompute::block, 5)), on_device(lowered(Recompute::block, 0)));
  const LoweredModel rest = lowered(Recompute::rest, 0), block = lowered(Recompute::block, 0);
  EXPECT_EQ(attentions(rest), 6) << "none twice";
  EXPECT_EQ(attentions(block), 11) << "all but the last layer's twice";
  EXPECT_GT(on_device(rest), on_device(block));
  EXPECT_LT(on_device(rest), on_device(lowered(Recompute::mlp, 0)));
  const LoweredModel away = lowered(Recompute::block, 0, true);
  EXPECT_LT(on_device(away), on_device(block));
  EXPECT_GT(away.set.memory.host.beyond_results(), 0);
}

// Gradients and weights are on the device a few layers at a time, on the way there and on the way back.
TEST(OffloadOfLayers, HoldsAFewLayersAtATime) {
  config::Model model = tiny_model("qwen3");
  model.tied = false;
  const auto lowered = [&](std::int64_t layers, const config::Placement& placement, bool accumulate) {
    model.layers = layers;
    LoweringOptions o = offload_options({"layers"}, placement);
    o.norms = false;
    o.accumulate = accumulate;
    o.recompute = program::Recompute::block;
    o.placement.residuals = placement.weights;
    return lower(model, o);
  };
  const auto transient = [](const LoweredModel& m, std::string_view name) {
    const auto at = std::ranges::find(m.set.programs, name, &program::Program::name) - m.set.programs.begin();
    return m.set.memory.device.transient_by_program[static_cast<std::size_t>(at)];
  };
  const LoweredModel few = lowered(5, kAll, true), many = lowered(12, kAll, true), all = lowered(12, {}, true);
  for (const std::string_view name : {kFirst, kAccumulate, kEvaluate})
    EXPECT_LE(transient(many, name), transient(few, name) + 8192) << name << ": more layers take no more memory";
  EXPECT_LT(many.set.memory.device.total, all.set.memory.device.total / 2);
  EXPECT_LT(many.set.memory.device.persistent, 65536) << "inputs, results and constants";

  // Copies of the next layer are under way while one computes, those back likewise.
  const program::Program& step = many.set.find(kAccumulate);
  std::map<program::Lane, std::int64_t> beside;
  std::map<std::int32_t, std::size_t> started;
  for (std::size_t i = 0; i < step.nodes.size(); ++i) {
    const program::Node& node = step.nodes[i];
    if (!std::holds_alternative<ops::Copy<program::ValueId>>(node.op)) continue;
    if (node.when == program::When::start) started[node.pair] = i;
    if (node.when != program::When::wait) continue;
    const auto computes = [](const program::Node& n) { return n.when == program::When::now; };
    beside[node.lane] += std::any_of(step.nodes.begin() + static_cast<std::ptrdiff_t>(started.at(node.pair)),
                                     step.nodes.begin() + static_cast<std::ptrdiff_t>(i), computes);
  }
  EXPECT_GT(beside[program::Lane::to_device], 12 * 8);
  EXPECT_GT(beside[program::Lane::to_host], 12 * 4);
}

// Ranks that keep shards have them in the host's memory as well; in fsdp those of gradients and weights, too. Where the
// state has copies, their gradients are added up from there.
TEST(OffloadOnRanks, HasTheBitsOfARunWithout) {
  for (const dist::Mode mode : {dist::Mode::zero1, dist::Mode::fsdp})
    for (const auto& [ranks, shards] : {std::pair{3, 0}, std::pair{4, 2}}) {
      const config::Placement away = mode == dist::Mode::fsdp ? kAll : kAllState;
      std::map<std::pair<bool, int>, std::vector<std::byte>> states;
      std::mutex mutex;
      for (const bool offloaded : {false, true})
        on_ranks(ranks, [&, ranks = ranks, shards = shards](dist::Group& group) {
          LoweringOptions o = offload_options({"ranks"}, offloaded ? away : config::Placement{});
          o.norms = false;
          o.sharing = {.rank = group.rank(), .ranks = ranks, .mode = mode, .shards = shards};
          o.execution.group = &group;
          device::CpuDevice device(1);
          TinyEngine engine(tiny_model("llama"), o, device);
          EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
          for (int step = 0; step < 3; ++step) step_on(engine, tiny_batch(53, 1), step, 1e-2);
          EXPECT_TRUE(engine.parameters_finite());
          const std::lock_guard lock(mutex);
          states[{offloaded, group.rank()}] = state_bytes_of(engine);
        });
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ((states[{true, rank}]), (states[{false, rank}])) << rank << " of " << ranks;
    }
}

}  // namespace
}  // namespace redline::model
