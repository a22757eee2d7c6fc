// What a plan promises of any configuration: its FLOPs and its kinds of memory.
#include "perf/plan.h"

#include <gtest/gtest.h>

#include "data/batch.h"
#include "model/lowering.h"
#include "perf/machines.h"
#include "testing/says.h"

namespace redline::perf {
namespace {

TEST(Plan, SplitsTheFlopsOfTheClosedFormForEveryPreset) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    const config::Config c = config_of(file.name, {});
    const Plan p = make_plan(c, machine_named("h200"));
    const ClosedForm f(c.model);
    const std::int64_t row = c.train.seq_len;
    EXPECT_NEAR(p.flops.projections / f.projections, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.mlp / f.mlp, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.head / f.head, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.scores / (f.scores(row) / static_cast<double>(row)), 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.palm() / (f.projections + f.mlp + f.head + f.scores_palm(row)), 1, 1e-12) << file.name;
    EXPECT_EQ(p.tokens_per_step, c.train.batch_size * c.train.seq_len * c.train.accumulate);
  }
}

// The same for packed documents with a tail, on programs as a card has them; what is computed again does not count.
TEST(Flops, OfPackedDocumentsAreTheClosedFormForEveryPreset) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    for (const char* recompute : {"none", "block"}) {
      const config::Config c = config_of(
          file.name, {"train.batch_size=2", "data.max_segments=4", fmt::format("train.recompute={}", recompute)});
      const model::LoweringOptions options = model::lowering_options(c, device::Kind::cuda);
      const model::LoweredModel lowered = model::lower(c.model, options);
      data::Batch batch(options.batch);
      const ClosedForm f(c.model);
      double closed = 0;
      for (const std::int64_t length : {c.train.seq_len / 3, std::int64_t{1}, c.train.seq_len, std::int64_t{17}}) {
        ASSERT_TRUE(batch.append(std::vector<std::int32_t>(static_cast<std::size_t>(length), 1)));
        closed += (f.projections + f.mlp + f.head) * static_cast<double>(length) + f.scores(length);
      }
      const double nodes = model::model_flops(lowered, options.batch, static_cast<double>(batch.real_tokens),
                                              [&](std::int64_t window) { return batch.pairs_within(window); });
      EXPECT_NEAR(nodes / closed, 1, 1e-12) << file.name << ", recompute " << recompute;
    }
  }
}

TEST(Plan, KindsOfMemoryAreTheArenaAndWhatStandsBesideIt) {
  const config::Config c = config_of("gqa-180m", {"optim.name=adamw"});
  const Plan card = make_plan(c, machine_named("h200"));
  const MemoryKinds& m = card.memory;
  EXPECT_EQ(m.total() - m.context, m.arena) << "a card holds nothing else";
  EXPECT_EQ(m.moments, 2 * m.masters);
  EXPECT_EQ(m.gradients, m.masters);
  EXPECT_EQ(2 * m.working_copies, m.masters);
  EXPECT_GE(4 * card.parameters, m.masters - (1 << 20));
  ASSERT_FALSE(card.largest.empty());
  EXPECT_EQ(card.largest[0].name, "gate_up");
  EXPECT_EQ(card.largest[0].count, c.model.layers);
  const std::int64_t rows = c.train.batch_size * c.train.seq_len;
  EXPECT_EQ(card.largest[0].bytes, c.model.layers * rows * 2 * c.model.ffn * 2);

  const Plan host = make_plan(c, cpu_machine());
  EXPECT_EQ(host.memory.total(), host.memory.arena);
  EXPECT_EQ(host.memory.working_copies, 0);
  EXPECT_GT(host.memory.activations, m.activations) << "fp32 there, bf16 on the card";
}

// A model with experts has all of them in memory, and works with those that a token takes.
TEST(Plan, ExpertsCountWholeInMemoryAndInPartInWork) {
  const config::Config moe = config_of("moe-1b", {"optim.name=adamw"}),
                       dense = config_of("gqa-180m", {"optim.name=adamw"});
  const Plan m = make_plan(moe, machine_named("h200")), d = make_plan(dense, machine_named("h200"));
  EXPECT_NEAR(static_cast<double>(m.parameters), 1.073e9, 5e6);
  EXPECT_NEAR(static_cast<double>(m.active_parameters), 181e6, 1e6);
  EXPECT_EQ(d.active_parameters, d.parameters);
  EXPECT_NEAR(static_cast<double>(m.memory.masters), 4 * static_cast<double>(m.parameters), 1 << 20);
  const double routers = 6.0 * static_cast<double>(moe.model.layers * moe.model.experts * moe.model.hidden);
  EXPECT_NEAR(m.flops.total() - d.flops.total(), routers, 1e-6 * d.flops.total());
  EXPECT_TRUE(m.fits);
  EXPECT_GT(m.expected.mfu, 0.2);
  EXPECT_LT(m.expected.mfu, d.expected.mfu) << "rows are gathered and summed, and eight times the weights are updated";
}

// bench/results/h200_packed.json: on an H200 a padded step of ping-95m without dropout took 135.9 ms for 186,500 real
// tokens a second, and packing made it 4.2 times as fast. The plan is too careful by a fifth here.
TEST(Filling, APaddedStepIsPlannedAsItWasMeasured) {
  const config::Config c = config_of("ping-95m", {"data.packing=pad", "model.dropout=0"});
  const std::optional<Filled> f = filled(c);
  ASSERT_TRUE(f.has_value());
  EXPECT_EQ(f->problem, "");
  EXPECT_EQ(f->documents, 20'000);
  EXPECT_NEAR(f->own.utilisation, 1 - 0.805, 0.02);
  EXPECT_EQ(f->own.documents, 1);
  EXPECT_GT(f->packed.utilisation, 0.95);
  const Machine machine = machine_named("h200");
  const Plan full = make_plan(c, machine), own = make_plan(c, machine, {}, f->own),
             packed = make_plan(c, machine, {}, f->packed);
  EXPECT_NEAR(own.expected.step_seconds, 0.1359, 0.03);
  EXPECT_NEAR(own.expected.tokens_per_s, 186.5e3, 35e3);
  EXPECT_NEAR(packed.expected.tokens_per_s / own.expected.tokens_per_s, 4.4, 0.6);
  EXPECT_LT(own.expected.step_seconds, full.expected.step_seconds) << "attention has less to do";
  EXPECT_EQ(own.memory.total(), full.memory.total());
  EXPECT_EQ(own.flops.total(), full.flops.total()) << "of full rows, for any filling";
}

TEST(Filling, OneDocumentARowIsAFullRow) {
  const config::Config c = config_of("quick");
  const Machine machine = machine_named("h200");
  const Plan full = make_plan(c, machine);
  const Plan same = make_plan(c, machine, {}, {.documents = 1, .length = static_cast<double>(c.train.seq_len)});
  EXPECT_EQ(same.expected.step_seconds, full.expected.step_seconds);
  EXPECT_EQ(same.expected.mfu, full.expected.mfu);
}

TEST(Filling, NothingIsSaidOfRowsThatFill) {
  for (const char* packing : {"pack", "stream"})
    for (const char* train : {"ping", "not/there"})
      EXPECT_FALSE(
          filled(config_of("ping-95m", {fmt::format("data.packing={}", packing), fmt::format("data.train={}", train)})))
          << packing << ' ' << train;
  const std::optional<Filled> none = filled(config_of("ping-95m", {"data.packing=bucket", "data.train=not/there"}));
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(testing::says(none->problem, {"not/there"}));
}

}  // namespace
}  // namespace redline::perf
