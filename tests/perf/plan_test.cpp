// What a plan promises of any configuration: its FLOPs, its kinds of memory, what is chosen; and the table of cards.
#include "perf/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "config/load.h"
#include "data/batch.h"
#include "model/lowering.h"
#include "perf/cards.h"
#include "perf/choose.h"

namespace redline::perf {
namespace {

config::Config config_of(const char* preset, std::vector<std::string> overrides) {
  return config::load({.file = "", .preset = preset, .overrides = std::move(overrides)});
}
Machine h200() { return machine_of(card_called("h200")); }

// 6 FLOPs for each weight of a product and token; 12 heads * head_dim a layer for each pair that the mask keeps.
struct ClosedForm {
  explicit ClosedForm(const config::Model& m)
      : projections(6.0 * static_cast<double>(m.layers * m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads))),
        mlp(6.0 * static_cast<double>(m.layers * 3 * m.hidden * m.ffn)),
        head(6.0 * static_cast<double>(m.vocab * m.hidden)),
        per_pair(12.0 * static_cast<double>(m.layers * m.heads * m.head_dim)) {}
  double projections, mlp, head, per_pair;
};

TEST(Plan, SplitsTheFlopsOfTheClosedFormForEveryPreset) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    const config::Config c = config_of(std::string(file.name).c_str(), {});
    const Plan p = make_plan(c, h200());
    const ClosedForm f(c.model);
    const double t = static_cast<double>(c.train.seq_len);
    EXPECT_NEAR(p.flops.projections / f.projections, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.mlp / f.mlp, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.head / f.head, 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.scores / (f.per_pair * (t + 1) / 2), 1, 1e-12) << file.name;
    EXPECT_NEAR(p.flops.palm() / (f.projections + f.mlp + f.head + f.per_pair * t), 1, 1e-12) << file.name;
    EXPECT_EQ(p.tokens_per_step, c.train.batch_size * c.train.seq_len * c.train.accumulate);
  }
}

// The same for packed documents with a tail, on programs as a card has them; what is computed again does not count.
TEST(Flops, OfPackedDocumentsAreTheClosedFormForEveryPreset) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    for (const char* recompute : {"none", "block"}) {
      const config::Config c =
          config_of(std::string(file.name).c_str(),
                    {"train.batch_size=2", "data.max_segments=4", fmt::format("train.recompute={}", recompute)});
      const model::LoweringOptions options = model::lowering_options(c, device::Kind::cuda);
      const model::LoweredModel lowered = model::lower(c.model, options);
      data::Batch batch(options.batch);
      double tokens = 0, pairs = 0;
      for (const std::int64_t length : {c.train.seq_len / 3, std::int64_t{1}, c.train.seq_len, std::int64_t{17}}) {
        ASSERT_TRUE(batch.append(std::vector<std::int32_t>(static_cast<std::size_t>(length), 1)));
        for (std::int64_t i = 1; i <= length; ++i) pairs += static_cast<double>(i);  // token i sees i of them
        tokens += static_cast<double>(length);
      }
      const ClosedForm f(c.model);
      const double closed = (f.projections + f.mlp + f.head) * tokens + f.per_pair * pairs;
      const double nodes = model::model_flops(lowered, options.batch, static_cast<double>(batch.real_tokens),
                                              static_cast<double>(batch.score_pairs));
      EXPECT_NEAR(nodes / closed, 1, 1e-12) << file.name << ", recompute " << recompute;
    }
  }
}

TEST(Plan, KindsOfMemoryAreTheArenaAndWhatStandsBesideIt) {
  const config::Config c = config_of("gqa-180m", {"optim.name=adamw"});
  const Plan card = make_plan(c, h200());
  const MemoryKinds& m = card.memory;
  EXPECT_EQ(m.total() - m.context - m.arena, 8 << 20) << "the ring of uploads";
  EXPECT_EQ(m.moments, 2 * m.masters);
  EXPECT_EQ(m.gradients, m.masters);
  EXPECT_EQ(2 * m.working_copies, m.masters);
  EXPECT_GE(4 * card.parameters, m.masters - (1 << 20));
  ASSERT_FALSE(card.largest.empty());
  EXPECT_EQ(card.largest[0].name, "gate_up");
  EXPECT_EQ(card.largest[0].count, c.model.layers);
  const std::int64_t rows = c.train.batch_size * c.train.seq_len;
  EXPECT_EQ(card.largest[0].bytes, c.model.layers * rows * 2 * c.model.ffn * 2);

  Machine cpu{.name = "CPU",
              .source = "given",
              .kind = device::Kind::cpu,
              .peak_flops = 1e11,
              .tflops = {.fp32 = 0.1},
              .copy_rate = 1e10,
              .memory = std::int64_t{1} << 40,
              .in_context = 0};
  const Plan host = make_plan(c, cpu);
  EXPECT_EQ(host.memory.total(), host.memory.arena);
  EXPECT_EQ(host.memory.working_copies, 0);
  EXPECT_GT(host.memory.activations, m.activations) << "fp32 there, bf16 on the card";
}

TEST(Choose, KeepsTheRowsOfAStepAndFits) {
  const config::Config c = config_of("llama-1.36b", {});
  const Machine machine = machine_of(card_called("a100-80"));
  const Choice choice = choose(c, machine);
  ASSERT_GT(choice.best.size(), 3u);
  EXPECT_FALSE(choice.changed);
  for (const Plan& p : choice.best) {
    EXPECT_EQ(p.setting.rows(), 96);
    EXPECT_TRUE(p.fits);
    EXPECT_LE(p.memory.total() + p.tuning, machine.memory);
    EXPECT_LE(p.expected.tokens_per_s, choice.best[0].expected.tokens_per_s);
  }
  EXPECT_EQ(choice.best[0].setting.recompute, "none");
  const config::Config chosen = with_setting(c, choice.best[0].setting);
  EXPECT_EQ(chosen.optim.lr, c.optim.lr);
  EXPECT_FALSE(make_plan(c, machine).fits) << "24 rows do not, hence the choice of fewer";
  EXPECT_NE(why(choice, machine).find("24 rows would need"), std::string::npos) << why(choice, machine);
}

TEST(Choose, FindsSmallMicroBatchesOfAHugeStep) {
  const config::Config c = config_of("quick", {"train.batch_size=256", "train.accumulate=256", "train.recompute=none"});
  Machine machine = h200();
  const Plan eight = make_plan(with_setting(c, {8, 8192, "none"}), machine);
  machine.memory = eight.memory.total() + eight.tuning;
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting, (Setting{8, 8192, "none"}));
}

TEST(Choose, RecomputesWhereNothingElseFits) {
  const config::Config c =
      config_of("llama-1.36b", {"train.batch_size=1", "train.accumulate=1", "train.seq_len=16384"});
  Machine machine = h200();
  machine.memory = make_plan(with_setting(c, {1, 1, "mlp"}), machine).memory.total();  // tuning does not fit beside it
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_EQ(choice.best[0].setting, (Setting{1, 1, "block"}));
  EXPECT_NE(why(choice, machine).find("keeping everything would need"), std::string::npos) << why(choice, machine);

  config::Config fixed = config_of(
      "llama-1.36b", {"train.batch_size=1", "train.accumulate=1", "train.seq_len=16384", "train.recompute=none"});
  const Choice none = choose(fixed, machine);
  EXPECT_TRUE(none.best.empty()) << "recompute was set, so it is not chosen";
  EXPECT_NE(why(none, machine).find("nothing fits"), std::string::npos) << why(none, machine);
  EXPECT_NE(why(none, machine).find("leave train.recompute out"), std::string::npos) << why(none, machine);
}

TEST(Choose, ChangesTheRowsOfAStepOnlyWhereTheyCannotBeCutWell) {
  // 509 is a prime: micro-batches of one row, or other rows a step.
  const config::Config c = config_of("quick", {"train.batch_size=509", "train.seq_len=64", "train.recompute=none"});
  Machine machine = h200();
  const Plan quarter = make_plan(with_setting(c, {128, 4, "none"}), machine);
  machine.memory = quarter.memory.total() + quarter.tuning;
  const Choice choice = choose(c, machine);
  ASSERT_FALSE(choice.best.empty());
  EXPECT_TRUE(choice.changed);
  const Setting& s = choice.best[0].setting;
  EXPECT_NEAR(static_cast<double>(s.rows()), 509, 32);
  const config::Config chosen = with_setting(c, s);
  const double factor = std::sqrt(static_cast<double>(s.rows()) / 509);
  EXPECT_DOUBLE_EQ(chosen.optim.lr, c.optim.lr * factor);
  EXPECT_DOUBLE_EQ(chosen.optim.min_lr, c.optim.min_lr * factor);
}

TEST(Choose, HasAnAnswerForAnyNumberOfRows) {
  // A prime times a prime, both above what micro-batches can be: only the configuration's own way is left.
  const config::Config c =
      config_of("quick", {"train.batch_size=16777213", "train.accumulate=1048573", "train.seq_len=1"});
  Machine cpu = h200();
  cpu.kind = device::Kind::cpu;
  const Choice choice = choose(c, cpu);
  EXPECT_TRUE(choice.best.empty());
  EXPECT_NE(why(choice, cpu).find("nothing fits"), std::string::npos) << why(choice, cpu);
}

TEST(Choose, LeavesOutWhatACardsKernelsDoNotTake) {
  const config::Config c = config_of("quick", {"train.batch_size=4096", "train.accumulate=16"});
  const Choice choice = choose(c, h200());
  ASSERT_FALSE(choice.best.empty());
  for (const auto* plans : {&choice.best, &choice.too_large})
    for (const Plan& p : *plans) EXPECT_LE(p.setting.batch_size, model::most_rows(c));
}

TEST(Cards, AreFoundByTheDriversNames) {
  const auto id = [](const char* name) { return find_card(name) ? find_card(name)->id : std::string_view("none"); };
  EXPECT_EQ(id("NVIDIA H200"), "h200");
  EXPECT_EQ(id("NVIDIA H200 NVL"), "h200-nvl");
  EXPECT_EQ(id("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(id("NVIDIA H100 PCIe"), "h100-pcie");
  EXPECT_EQ(id("NVIDIA H100 NVL"), "h100-nvl");
  EXPECT_EQ(id("NVIDIA A100-SXM4-40GB"), "a100-40");
  EXPECT_EQ(id("A100-SXM4-80GB"), "a100-80");
  EXPECT_EQ(id("NVIDIA A100-PCIE-40GB"), "a100-40-pcie");
  EXPECT_EQ(id("NVIDIA A100 80GB PCIe"), "a100-80-pcie");
  EXPECT_EQ(id("NVIDIA RTX A6000"), "a6000");
  EXPECT_EQ(id("NVIDIA L4"), "l4");
  EXPECT_EQ(id("NVIDIA L40S"), "l40s");
  EXPECT_EQ(id("NVIDIA GeForce RTX 4090"), "rtx-4090");
  EXPECT_EQ(id("NVIDIA B200"), "b200");
  EXPECT_EQ(id("NVIDIA GB200"), "gb200");
  for (const char* unknown : {"NVIDIA A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
                              "NVIDIA L40", "NVIDIA RTX 6000 Ada Generation", "NVIDIA GH200 480GB",
                              "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 MIG 1g.10gb", ""})
    EXPECT_EQ(id(unknown), "none") << unknown;
}

TEST(Cards, StateDenseRates) {
  for (const Card& c : cards()) {
    EXPECT_EQ(&card_called(c.id), &c);
    EXPECT_GE(c.tflops.bf16, c.tflops.tf32) << c.id;
    EXPECT_GE(c.tflops.tf32, c.tflops.fp32) << c.id;
    EXPECT_TRUE(c.tflops.fp8 == 0 || std::abs(c.tflops.fp8 / c.tflops.bf16 - 2) < 0.05) << c.id;
    EXPECT_GT(c.memory_gib, 0) << c.id;
  }
  EXPECT_EQ(card_called("H200").tflops.bf16, 989.5);
  EXPECT_EQ(card_called("a100-80").tflops.bf16, 312);
  EXPECT_EQ(card_called("b200").tflops.bf16, 2250);
  EXPECT_THROW(card_called("h20"), UserError);
}

}  // namespace
}  // namespace redline::perf
