// A profile accounts for the whole step, and its FLOPs are those of the model's closed form.
#include "perf/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "data/from_config.h"
#include "data/loader.h"
#include "model/lowering.h"
#include "perf/machines.h"
#include "perf/peak.h"
#include "program/program.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

config::Config tiny(std::int64_t accumulate) {
  return testing::tiny_run({"model.heads=4", "model.kv_heads=2", "train.seq_len=128",  // head_dim is not hidden / heads
                            fmt::format("train.accumulate={}", accumulate)});
}

Profile profile_of(const config::Config& config, std::int64_t steps) {
  device::CpuDevice device(1);
  ProfileOptions options;
  options.config = config;
  options.warmup = 1;
  options.steps = steps;
  return profile(options, device);
}

double sum(const std::vector<TimedWork>& work, double TimedWork::*of) {
  double total = 0;
  for (const TimedWork& w : work) total += w.*of;
  return total;
}

class ProfileOf : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(ProfileOf, AccountsForTheWholeStep) {
  const Profile p = profile_of(tiny(GetParam()), 3);
  EXPECT_GT(p.step_ms, 0);
  EXPECT_NEAR(sum(p.kinds, &TimedWork::share) + (p.data_ms + p.outside_ms) / p.step_ms, 1, 1e-9);
  EXPECT_NEAR(sum(p.nodes, &TimedWork::ms), p.nodes_ms, 1e-9 * p.nodes_ms);
  EXPECT_NEAR(sum(p.kinds, &TimedWork::ms), p.nodes_ms, 1e-9 * p.nodes_ms);
  EXPECT_GE(p.outside_ms, 0);
  EXPECT_LE(p.nodes_ms, p.step_ms);
  double calls = 0;
  for (const TimedWork& node : p.nodes) calls += node.calls;
  EXPECT_DOUBLE_EQ(static_cast<double>(p.spans.size()), calls * 3);
}

TEST_P(ProfileOf, CountsTheFlopsOfTheClosedForm) {
  const config::Config c = tiny(GetParam());
  constexpr std::int64_t kSteps = 2, kWarmup = 1;
  const ClosedForm f(c.model);
  const double token = f.projections + f.mlp + f.head, of_pair = f.per_pair * static_cast<double>(c.model.layers);
  data::Batch batch({c.train.batch_size, c.train.seq_len, c.data.max_segments});
  data::Loader loader(data::open_training_corpus(data::corpus_options(c.data)),
                      data::loader_options(c.data, batch.shape, true));
  double slots = 0, real = 0, pairs = 0;
  for (std::int64_t i = 0; i < (kWarmup + kSteps) * c.train.accumulate; ++i) {
    loader.next(batch);
    if (i < kWarmup * c.train.accumulate) continue;
    slots += static_cast<double>(batch.shape.tokens()) / kSteps;
    real += static_cast<double>(batch.real_tokens) / kSteps;
    pairs += static_cast<double>(batch.score_pairs) / kSteps;
  }
  const Profile p = profile_of(c, kSteps);
  EXPECT_NEAR(sum(p.nodes, &TimedWork::flops) / (token * slots + of_pair * pairs), 1, 1e-12);
  EXPECT_NEAR(p.model_flops / (token * real + of_pair * pairs), 1, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Accumulate, ProfileOf, ::testing::Values(1, 3));

// As a card has them in bf16: products take bf16, gradients of weights are written as f32, and a product whose operand
// was made wider is told apart.
TEST(Profile, TypesOfNodesAreThoseOfTheirElements) {
  const config::Config c = tiny(1);
  const model::LoweredModel lowered = model::lower(c.model, model::lowering_options(c, device::Kind::cuda));
  std::set<std::string> linear, weight_grad;
  program::ProgramSet wider = lowered.set;
  for (const program::Node& node : lowered.set.find(model::kFirst).nodes) {
    const std::string_view op = program::name_of(node.op);
    if (op == "linear") linear.insert(types_of(node, lowered.set));
    if (op == "linear_weight_grad") weight_grad.insert(types_of(node, lowered.set));
    if (op != "linear") continue;
    EXPECT_EQ(product_type(node, lowered.set), DType::bf16);
    program::each_operand(node.op, [&](std::string_view, program::ValueId id, Access) {
      wider.values[static_cast<std::size_t>(id.index)].dtype = DType::f32;
    });
    EXPECT_EQ(product_type(node, wider), DType::f32);
    EXPECT_EQ(types_of(node, wider), "f32>f32");
  }
  EXPECT_EQ(linear, (std::set<std::string>{"bf16>bf16"}));
  EXPECT_EQ(weight_grad, (std::set<std::string>{"bf16>f32"}));
}

TEST(Profile, OfTheCpuSaysItsTypes) {
  const Profile p = profile_of(tiny(1), 1);
  EXPECT_EQ(p.products.size(), 1u);
  EXPECT_GT(p.products.at("f32"), 0);
  EXPECT_TRUE(p.upcast.empty()) << "its weights have no narrower copy";
  const auto linear = std::ranges::find(p.kinds, "linear", &TimedWork::op);
  ASSERT_NE(linear, p.kinds.end());
  EXPECT_EQ(linear->types, "f32>f32");
}

TEST(Profile, ATraceHoldsEveryRunOfANode) {
  const Profile p = profile_of(tiny(1), 2);
  const auto json = nlohmann::json::parse(chrome_trace(p));
  std::size_t bars = 0;
  std::set<std::string> names;
  double last = -1;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++bars;
    names.insert(event.at("name").get<std::string>());
    EXPECT_GE(event.at("ts").get<double>(), last);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    last = event.at("ts").get<double>();
  }
  EXPECT_EQ(bars, p.spans.size());
  EXPECT_EQ(names.size(), p.nodes.size());
}

TEST(Profile, RefusesDataThatTheModelCannotEmbed) {
  config::Config c = tiny(1);
  c.model.vocab = 100;
  EXPECT_THROW(profile_of(c, 1), UserError);
}

TEST(Peak, IsMeasuredAndSaysHow) {
  device::CpuDevice device;
  const Peak peak = find_peak(device);
  EXPECT_GT(peak.flops, 1e7);
  EXPECT_EQ(peak.source.rfind("measured: fp32 product of ", 0), 0u) << peak.source;
  EXPECT_EQ(blas_library().version.rfind("OpenBLAS", 0), 0u);
  EXPECT_FALSE(blas_library().core.empty());
}

}  // namespace
}  // namespace redline::perf
