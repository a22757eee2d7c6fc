// A product takes eight bits where that is faster with its casts, and can be computed; everything else stays in bf16,
// with the reason.
#include "perf/fp8_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/lowering.h"
#include "perf/machines.h"
#include "program/program.h"
#include "testing/says.h"

namespace redline::perf {
namespace {

using testing::says;

config::Config fp8_config(std::vector<std::string> overrides = {}, const std::string& preset = "gqa-180m") {
  overrides.insert(overrides.begin(), "precision.matmul=fp8");
  return config_of(preset, std::move(overrides));
}

bool in_fp8(const program::Node& node) { return program::name_of(node.op) == "fp8_product"; }

// A card whose products take so long; those of `broken` cannot be computed.
struct TimedCard {
  std::function<double(const std::string& product, bool fp8)> seconds;
  std::set<std::string> broken = {};
  int timed = 0;
  model::ParameterTable table = model::family_of(fp8_config().model).table(fp8_config().model);

  TimeNodes time() {
    return [this](const program::ProgramSet& set, std::span<const program::Node* const> nodes, bool wanted) {
      std::vector<NodeSeconds> out;
      for (const program::Node* node : nodes) {
        const std::string product = model::fp8_product_of(table, set, *node);
        NodeSeconds& n = out.emplace_back();
        if (in_fp8(*node) && broken.contains(product))
          n.problem = "no algorithm";
        else if (wanted)
          n.seconds = seconds(product, in_fp8(*node)), ++timed;
      }
      return out;
    };
  }
};

TEST(Fp8Choice, NodesOfAllPrecisionsAreKnownByTheirProduct) {
  for (const char* family : {"llama", "qwen3", "olmo2"}) {
    for (const char* recompute : {"none", "mlp", "block"}) {
      for (const bool fp8 : {false, true}) {
        config::Config c =
            fp8_config({fmt::format("model.family={}", family), fmt::format("train.recompute={}", recompute),
                        "model.layers=3", "model.qk_norm=" + std::string(family[0] == 'l' ? "false" : "true")});
        if (!fp8) c.precision.fp8_products = {"none"};
        const model::LoweredModel m = model::lower(c.model, model::lowering_options(c, device::Kind::cuda));
        std::map<std::string, int> seen;
        for (const program::Node& node : m.set.find(model::kFirst).nodes)
          if (const std::string p = model::fp8_product_of(m.table, m.set, node); !p.empty()) {
            ++seen[p];
            EXPECT_EQ(in_fp8(node), fp8) << node.full_name();
          }
        EXPECT_EQ(seen.size(), 12u) << family << fp8;
        for (const auto& [name, count] : seen) {  // what is computed again is a forward product too
          EXPECT_GE(count, 3) << name;
          EXPECT_LE(count, name.ends_with("/forward") && recompute != std::string_view("none") ? 6 : 3) << name;
        }
      }
    }
  }
}

TEST(Fp8Choice, ProductsInFp8AreTunedFirst) {
  std::vector<bool> fp8;
  const TimeNodes time = [&](const program::ProgramSet&, std::span<const program::Node* const> nodes, bool timed) {
    if (timed) fp8.push_back(std::ranges::all_of(nodes, [](const program::Node* node) { return in_fp8(*node); }));
    return std::vector<NodeSeconds>(nodes.size(), {1e-3, ""});
  };
  take_faster(fp8_config(), machine_named("h200"), time);
  EXPECT_EQ(fp8, (std::vector<bool>{true, false}));
}

// Products of experts are no library's: what the machine is expected to need decides, with the casts.
TEST(Fp8Choice, ExpertsAreTakenByWhatTheMachineNeeds) {
  const TimeNodes time = [](const program::ProgramSet&, std::span<const program::Node* const> nodes, bool) {
    std::vector<NodeSeconds> out;
    for (const program::Node* node : nodes) out.push_back({in_fp8(*node) ? 2e-3 : 1e-3});  // of attention it is slower
    return out;
  };
  const config::Config c = fp8_config({"model.layers=2", "train.batch_size=8"}, "olmoe-1b-7b");
  const Fp8Choice choice = take_faster(c, machine_named("h200"), time);
  for (const char* product : {"forward", "input", "weight"})
    for (const char* linear : {"expert_gate_up", "expert_down"})
      EXPECT_TRUE(std::ranges::count(choice.config.precision.fp8_products, fmt::format("{}/{}", linear, product)))
          << linear << "/" << product;
  for (const std::string& product : choice.config.precision.fp8_products)
    EXPECT_TRUE(product.starts_with("expert_")) << product;
}

// Dense layers among those with experts have products of their own, wherever they stand, and each linear's casts count
// in the layers that have it.
TEST(Fp8Choice, DenseLayersAmongExpertsAreChosenToo) {
  const Machine h200 = machine_named("h200");
  const auto config_with = [](int layers, const std::string& dense) {
    return fp8_config({fmt::format("model.layers={}", layers), "model.dense_layers=" + dense}, "qwen3-30b-a3b");
  };
  for (const char* dense : {"[0,1]", "[2]", "[3]", "[0,1,2]"}) {
    const Fp8Choice choice = expect_fp8(config_with(4, dense), h200);
    EXPECT_EQ(
        model::fp8_candidates(model::family_of(choice.config.model).table(choice.config.model), 4096).linears.size(),
        6u);
    for (const char* product : {"down/forward", "expert_down/forward"})
      EXPECT_EQ(std::ranges::count(choice.config.precision.fp8_products, product), 1) << dense << " " << product;
  }
  int taken = 0, left = 0;
  for (const double gain : {1e-6, 1e-5, 3e-5, 1e-4, 1e-3}) {
    std::set<std::int64_t> counts;
    for (const int layers : {2, 6}) {  // one of them dense
      const config::Config c = config_with(layers, "[1]");
      TimedCard card{[&](const std::string&, bool fp8) { return fp8 ? 1e-6 : 1e-6 + gain; }};
      card.table = model::family_of(c.model).table(c.model);
      counts.insert(
          std::ranges::count(take_faster(c, h200, card.time()).config.precision.fp8_products, "down/forward"));
    }
    EXPECT_EQ(counts.size(), 1u) << gain << ": five layers with experts change nothing for the dense one";
    (*counts.begin() > 0 ? taken : left) += 1;
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(left, 0);
}

// A plan takes the list that a run takes whose card has the rates that plans expect.
TEST(Fp8Choice, APlanExpectsTheListOfARun) {
  const Machine machine = machine_named("h200");
  const TimeNodes as_expected = [&](const program::ProgramSet& set, std::span<const program::Node* const> nodes, bool) {
    std::vector<NodeSeconds> out;
    for (const program::Node* node : nodes) {
      const program::Program alone{.name = "", .nodes = {*node}};
      const bool of_experts = program::name_of(node->op).starts_with("grouped_");
      out.push_back({of_experts ? 0 : node_seconds(set, alone, 1, 1, machine)[0]});
    }
    return out;
  };
  for (const char* preset : {"ping-95m", "llama-1.36b", "moe-1b"}) {
    const config::Config c = fp8_config({"model.layers=2"}, preset);
    const Fp8Choice plan = expect_fp8(c, machine), run = take_faster(c, machine, as_expected);
    EXPECT_EQ(plan.config.precision.fp8_products, run.config.precision.fp8_products) << preset;
    EXPECT_EQ(model::in_words(model::fp8_products(plan.config), plan.reasons),
              model::in_words(model::fp8_products(run.config), run.reasons));
  }
  for (const char* said : {"precision.fp8=all", "kernels.deterministic=true", "precision.matmul=bf16",
                           "precision.fp8_products=[\"qkv/forward\"]"}) {
    const config::Config c = fp8_config({said}, "moe-1b");
    EXPECT_EQ(expect_fp8(c, machine).config, c) << said << ": nothing is left to choose";
  }
  const config::Config lacks = expect_fp8(fp8_config(), machine_named("a100-80")).config;
  EXPECT_EQ(lacks.precision.fp8_products, std::vector<std::string>{"none"});
}

TEST(Fp8Choice, TakesAllThatIsFasterWithItsCasts) {
  TimedCard card{[](const std::string&, bool fp8) { return fp8 ? 0.5 : 1.0; }};  // casts are nothing beside a second
  const Fp8Choice choice = take_faster(fp8_config(), machine_named("h200"), card.time());
  EXPECT_EQ(choice.config.precision.fp8_products.size(), 12u);
  EXPECT_TRUE(choice.reasons.why.empty());
  EXPECT_TRUE(says(choice.reasons.sum, {"instead of"}));
}

// Rates of an H200 under load. Small models gain less: their casts move as much for fewer FLOPs.
TEST(Fp8Choice, AtAnH200sRatesALargeModelTakesAllAndNoneIsSlower) {
  const TimeNodes time = [](const program::ProgramSet&, std::span<const program::Node* const> nodes, bool) {
    std::vector<NodeSeconds> out;
    for (const program::Node* node : nodes) out.push_back({node->cost.flops / (in_fp8(*node) ? 1150e12 : 650e12), ""});
    return out;
  };
  for (const char* preset : {"ping-95m", "gqa-180m", "cs336-350m", "llama-1.36b", "qwen3-1.8b"}) {
    const Fp8Choice choice = take_faster(fp8_config({}, preset), machine_named("h200"), time);
    const std::size_t taken = choice.config.precision.fp8_products.size();
    EXPECT_GE(taken, preset == std::string_view("llama-1.36b") ? 12u : 6u)
        << preset << ": " << model::in_words(model::fp8_products(choice.config), choice.reasons);
  }
}

TEST(Fp8Choice, ATieOrALossStaysInBf16) {
  for (const double fp8_seconds : {1.0, 2.0}) {
    TimedCard card{[&](const std::string&, bool fp8) { return fp8 ? fp8_seconds : 1.0; }};
    const Fp8Choice choice = take_faster(fp8_config(), machine_named("h200"), card.time());
    EXPECT_EQ(choice.config.precision.fp8_products, std::vector<std::string>{"none"});
    EXPECT_EQ(choice.reasons.why.size(), 12u);
  }
}

TEST(Fp8Choice, CastsCountAgainstWhatAProductGains) {
  const config::Config c = fp8_config();
  // A gain of a nanosecond for each product: no cast of these tensors is so cheap.
  TimedCard slow{[](const std::string&, bool fp8) { return fp8 ? 1e-6 : 1.001e-6; }};
  EXPECT_EQ(take_faster(c, machine_named("h200"), slow.time()).config.precision.fp8_products,
            std::vector<std::string>{"none"});
  // One product alone is worth it.
  TimedCard one{
      [](const std::string& product, bool fp8) { return fp8 ? (product == "down/input" ? 1e-6 : 1e-2) : 5e-3; }};
  const Fp8Choice choice = take_faster(c, machine_named("h200"), one.time());
  EXPECT_EQ(choice.config.precision.fp8_products, std::vector<std::string>{"down/input"});
  EXPECT_EQ(choice.reasons.why.at("qkv/forward").find("5 ms against 10"), 0u) << choice.reasons.why.at("qkv/forward");
}

TEST(Fp8Choice, WhatCannotBeComputedStaysInBf16WithTheReason) {
  TimedCard card{[](const std::string&, bool fp8) { return fp8 ? 0.5 : 1.0; }, {"out/weight"}};
  const Fp8Choice choice = take_faster(fp8_config(), machine_named("h200"), card.time());
  EXPECT_EQ(choice.config.precision.fp8_products.size(), 11u);
  EXPECT_EQ(std::ranges::count(choice.config.precision.fp8_products, "out/weight"), 0);
  EXPECT_EQ(choice.reasons.why.at("out/weight"), "no algorithm");
  EXPECT_TRUE(says(model::in_words(model::fp8_products(choice.config), choice.reasons), {"out/weight (no algorithm)"}));
}

TEST(Fp8Choice, ACardWithoutItIsNotTimed) {
  TimedCard card{[](const std::string&, bool) { return 1.0; }};
  for (const std::string& p : model::fp8_products(fp8_config()).taken) card.broken.insert(p);
  const Fp8Choice choice = take_faster(fp8_config(), machine_named("h200"), card.time());
  EXPECT_EQ(choice.config.precision.fp8_products, std::vector<std::string>{"none"});
  EXPECT_EQ(card.timed, 0);
  const std::string words = model::in_words(model::fp8_products(choice.config), choice.reasons);
  EXPECT_EQ(words.find("(no algorithm)"), words.rfind("(no algorithm)")) << "said once: " << words;
}

TEST(Fp8Choice, AListIsHeldAgainstTheCardAndNothingIsTimed) {
  const std::vector<std::string> list = {"qkv/forward", "down/weight"};
  TimedCard card{[](const std::string&, bool) { return 1.0; }};
  EXPECT_EQ(take_possible(fp8_config(), list, card.time()).config.precision.fp8_products, list);
  card.broken = {"down/weight"};
  const Fp8Choice choice = take_possible(fp8_config(), list, card.time());
  EXPECT_EQ(choice.config.precision.fp8_products, std::vector<std::string>{"qkv/forward"});
  EXPECT_EQ(choice.reasons.why.size(), 1u);
  EXPECT_EQ(card.timed, 0);
}

TEST(Fp8Choice, TheCpuTakesTheListOrAll) {
  device::CpuDevice cpu;
  EXPECT_EQ(settle_fp8(fp8_config({}, "quick"), cpu, true).config.precision.fp8_products.size(), 12u);
  const config::Config listed = fp8_config({"precision.fp8_products=[\"out/input\"]"}, "quick");
  EXPECT_EQ(settle_fp8(listed, cpu, true).config, listed);
  config::Config bf16 = listed;
  bf16.precision.matmul = "bf16";
  EXPECT_EQ(settle_fp8(bf16, cpu, true).config, bf16);
}

TEST(Fp8Choice, ARunKeepsItsListUnlessTheCommandLineSaysMore) {
  config::Config run = fp8_config({}, "quick");
  run.precision.fp8_products = {"qkv/forward"};
  const auto after = [&](std::vector<std::string> overrides) {
    return adopt_fp8_products(fp8_config(std::move(overrides), "quick"), run).precision.fp8_products;
  };
  EXPECT_EQ(after({}), run.precision.fp8_products);
  EXPECT_EQ(after({"precision.fp8=auto"}), run.precision.fp8_products);
  EXPECT_TRUE(after({"precision.fp8=all"}).empty());
  EXPECT_EQ(after({"precision.fp8_products=[\"down/input\"]"}), std::vector<std::string>{"down/input"});
  run.precision.matmul = "bf16";
  EXPECT_TRUE(after({}).empty()) << "a list that was never used";
}

}  // namespace
}  // namespace redline::perf
