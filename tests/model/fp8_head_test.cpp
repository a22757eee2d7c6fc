// A head whose gradients are products in eight bits: whole models lower, their plans have no fault, and they learn as
// with a head in bf16.
#include <gtest/gtest.h>

#include <cmath>

#include "model/engine.h"
#include "model/fp8_linears.h"
#include "model/tiny.h"
#include "testing/check_plan.h"

namespace redline::model {
namespace {

using device::Kind;
using testing::array_of;
using testing::batch_of;
using testing::random_document;

config::Config config_of(const std::string& family, bool tied, const char* head) {
  config::Config c;
  c.model = testing::tiny_model(family, tied);
  c.model.hidden = 32, c.model.head_dim = 16, c.model.ffn = 48, c.model.vocab = 80;
  c.model.init_std = 0.1;
  c.train.batch_size = 2, c.train.seq_len = 32, c.train.accumulate = 2;
  c.data.max_segments = 4;
  c.precision.matmul = "fp8", c.precision.head = head;
  return c;
}

const ops::LmLoss<program::ValueId>& loss_of(const LoweredModel& m, std::string_view program) {
  for (const program::Node& node : m.set.find(program).nodes)
    if (const auto* loss = std::get_if<ops::LmLoss<program::ValueId>>(&node.op)) return *loss;
  fail_machine("{} has no loss", program);
}

TEST(Fp8Head, LowersForEveryFamilyAndDevice) {
  for (const Family* family : families()) {
    for (const bool tied : {false, true}) {
      for (const Kind kind : {Kind::cpu, Kind::cuda}) {
        for (const char* recompute : {"none", "block"}) {
          config::Config c = config_of(std::string(family->name), tied, "fp8");
          c.train.recompute = recompute;
          LoweringOptions o = lowering_options(c, kind);
          ASSERT_TRUE(o.fp8_head);
          o.loss_chunk = 37;
          const LoweredModel m = lower(c.model, o);
          EXPECT_EQ(program::check_plan(m.set), std::vector<std::string>{});
          for (const std::string_view step : {kFirst, kAccumulate}) {
            const auto& loss = loss_of(m, step);
            ASSERT_TRUE(loss.fp8.present());
            EXPECT_EQ(m.set.at(loss.fp8.x).shape, (Shape{32, 64}));
            EXPECT_EQ(m.set.at(loss.fp8.weight).shape, (Shape{32, 80}));
            EXPECT_EQ(m.set.at(loss.fp8.dlogits).shape, (Shape{80, 32})) << "chunks are multiples of 16";
            EXPECT_EQ(m.set.at(loss.logits).shape, (Shape{32, 80}));
          }
          EXPECT_FALSE(loss_of(m, kEvaluate).fp8.weight.present());
        }
      }
    }
  }
}

TEST(Fp8Head, IsRefusedWithAReasonWhereProductsWouldBe) {
  const auto candidates = [](std::int64_t vocab, std::int64_t tokens, bool asked) {
    config::Config c = config_of("llama", false, "fp8");
    c.model.vocab = vocab;
    return fp8_candidates(family_of(c.model).table(c.model), tokens, asked);
  };
  EXPECT_TRUE(candidates(80, 64, true).head);
  EXPECT_TRUE(candidates(80, 64, true).refused.empty());
  EXPECT_FALSE(candidates(80, 64, false).head);
  EXPECT_FALSE(candidates(81, 64, true).head);
  EXPECT_EQ(candidates(81, 64, true).refused.size(), 1u);
  EXPECT_TRUE(candidates(81, 64, false).refused.empty());
  EXPECT_FALSE(candidates(80, 60, true).head);

  config::Config c = config_of("llama", false, "fp8");
  c.model.vocab = 81;
  const LoweringOptions o = lowering_options(c, Kind::cpu);
  EXPECT_FALSE(o.fp8_head);
  EXPECT_FALSE(loss_of(lower(c.model, o), kFirst).fp8.weight.present());
}

// One batch again and again, two micro-batches a step.
struct Learned {
  std::vector<double> losses;
  std::vector<float> gradients;  // of the first step
};
Learned learn(const config::Config& c, int steps, bool head_alone = false) {
  device::CpuDevice device(2);
  LoweringOptions o = lowering_options(c, Kind::cpu);
  if (head_alone) o.fp8.clear();
  Engine engine(c.model, o, device);
  engine.initialise(3);
  const data::Batch batch =
      batch_of(batch_shape(c), {random_document(1, 31, c.model.vocab), random_document(2, 9, c.model.vocab),
                                random_document(3, 17, c.model.vocab)});
  Learned learned;
  for (int step = 0; step < steps; ++step) {
    engine.upload(batch);
    engine.set_step(static_cast<std::uint64_t>(step), 3e-3, static_cast<double>(2 * batch.pairs), 0);
    engine.executor().poison_transients();
    engine.micro_step(true);
    engine.micro_step(false);
    learned.losses.push_back(engine.loss_sum() / static_cast<double>(2 * batch.pairs));
    if (step == 0) learned.gradients = array_of(engine, optim::kGradients);
    engine.update();
  }
  return learned;
}

TEST(Fp8Head, LearnsAsOneInBf16Does) {
  constexpr int kSteps = 20;
  for (const bool tied : {false, true}) {
    const Learned bf16 = learn(config_of("llama", tied, "bf16"), kSteps),
                  fp8 = learn(config_of("llama", tied, "fp8"), kSteps);
    EXPECT_EQ(fp8.losses[0], bf16.losses[0]) << "logits are the same product";
    EXPECT_LT(fp8.losses.back(), 0.9 * fp8.losses[0]);
    for (int i = 0; i < kSteps; ++i) {
      const auto step = static_cast<std::size_t>(i);
      EXPECT_NEAR(fp8.losses[step], bf16.losses[step], 0.02 * bf16.losses[step]) << "step " << step;
    }
  }
}

// Linears in bf16, so that no cast but the head's is between the two.
TEST(Fp8Head, ChangesGradientsByTheErrorOfItsCasts) {
  for (const Family* family : families()) {
    for (const bool tied : {false, true}) {
      const std::string name(family->name);
      const Learned bf16 = learn(config_of(name, tied, "bf16"), 1, true),
                    fp8 = learn(config_of(name, tied, "fp8"), 1, true);
      EXPECT_EQ(fp8.losses, bf16.losses);
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < bf16.gradients.size(); ++i) {
        difference += std::pow(fp8.gradients[i] - bf16.gradients[i], 2.0);
        norm += std::pow(bf16.gradients[i], 2.0);
      }
      EXPECT_LT(std::sqrt(difference), 0.06 * std::sqrt(norm)) << name;
      EXPECT_GT(std::sqrt(difference), 0.01 * std::sqrt(norm)) << name << ": was it in eight bits at all?";
    }
  }
}

}  // namespace
}  // namespace redline::model
