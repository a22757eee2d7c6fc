// What a plan for several ranks promises of any configuration: all of the step's work, all of the parameters, every
// byte that a mode has to send, and no time that is hidden under nothing.
#include "perf/scale.h"

#include <gtest/gtest.h>

#include "config/load.h"
#include "model/lowering.h"

namespace redline::perf {
namespace {

config::Config config_of(std::string_view preset, std::vector<std::string> overrides = {}) {
  return config::load({.file = "", .preset = std::string(preset), .overrides = std::move(overrides)});
}
Machine card(const char* name) { return machine_of(card_called(name)); }
Fabric ndr(const char* name = "h200") { return fabric_of(card_called(name), network_called("ndr"), 8, 8); }

struct Sent {
  double gradients = 0, weights = 0, seconds = 0;
};
Sent sent(const RankStep& times) {
  Sent s;
  for (const CollectiveUse& u : times.collectives) {
    if (u.of == "gradients") s.gradients += u.bytes;
    if (u.of.starts_with("weights")) s.weights += u.bytes;
    s.seconds += u.seconds;
  }
  return s;
}

TEST(Scale, BlocksAreTheWholeStepAndHoldEveryParameterOnce) {
  for (const char* preset : {"gqa-180m", "llama-1.36b", "olmo2-1.5b"}) {  // the first is tied
    const config::Config c = config_of(preset, {"train.accumulate=3", "train.recompute=mlp"});
    const StepWork work = step_work(c, card("h200"));
    EXPECT_NEAR(work.compute() / make_plan(c, card("h200")).expected.step_seconds, 1, 1e-9) << preset;
    EXPECT_EQ(work.blocks.size(), static_cast<std::size_t>(c.model.layers) + 2) << preset;
    const model::LoweredModel lowered = model::lower(c.model, model::lowering_options(c, device::Kind::cuda));
    std::int64_t gradients = 0, reads = 0;
    for (const Block& b : work.blocks) {
      gradients += b.gradients;
      reads += b.first_reads;
      EXPECT_GT(b.forward, 0) << preset << ", " << b.name;
      EXPECT_GT(b.reads, 0) << preset << ", " << b.name;
    }
    EXPECT_EQ(gradients, model::parameter_count(lowered.table)) << preset;
    EXPECT_EQ(reads, model::parameter_count(lowered.table)) << preset;
  }
}

TEST(Scale, EveryModeSendsItsBytes) {
  const config::Config c = config_of("llama-1.36b", {"train.accumulate=2"});
  const StepWork work = step_work(c, card("h200"));
  double n = 0, again = 0;
  for (const Block& b : work.blocks) n += static_cast<double>(b.gradients);
  for (std::size_t i = 0; i + 1 < work.blocks.size(); ++i) again += static_cast<double>(work.blocks[i].backward_reads);
  const Sent ddp = sent(simulate(work, Mode::ddp, 16, ndr())), zero1 = sent(simulate(work, Mode::zero1, 16, ndr())),
             fsdp = sent(simulate(work, Mode::fsdp, 16, ndr()));
  EXPECT_DOUBLE_EQ(ddp.gradients, 4 * n);
  EXPECT_DOUBLE_EQ(ddp.weights, 0);
  EXPECT_DOUBLE_EQ(zero1.gradients, 4 * n);
  EXPECT_DOUBLE_EQ(zero1.weights, 2 * n) << "once a step";
  EXPECT_DOUBLE_EQ(fsdp.gradients, 2 * 4 * n) << "each micro-step";
  EXPECT_DOUBLE_EQ(fsdp.weights, 2 * 2 * (n + again)) << "each micro-step, there and back";
  const config::Config half = config_of("llama-1.36b", {"train.accumulate=2", "parallel.wire=bf16"});
  EXPECT_DOUBLE_EQ(sent(simulate(step_work(half, card("h200")), Mode::ddp, 16, ndr())).gradients, 2 * n);
}

TEST(Scale, CommunicationHidesUnderComputeAndNothingElse) {
  const StepWork work = step_work(config_of("llama-1.36b", {"train.accumulate=1"}), card("h200"));
  for (const Mode mode : kModes) {
    double before = 0;
    for (const double slower : {1e-6, 0.1, 1.0, 10.0, 100.0}) {
      Fabric f = ndr();
      f.inside.bus_bandwidth /= slower;
      f.between.bus_bandwidth /= slower;
      const RankStep t = simulate(work, mode, 64, f);
      const double seconds = sent(t).seconds, parts = t.compute + t.exposed;
      EXPECT_GE(parts, std::max(t.compute, seconds)) << name_of(mode) << ", " << slower;
      EXPECT_LE(parts, t.compute + seconds + 1e-9) << name_of(mode) << ", " << slower;
      EXPECT_GE(parts, before) << name_of(mode) << ", " << slower << ": a slower network is never faster";
      before = parts;
      double exposed = 0;
      for (const CollectiveUse& u : t.collectives) exposed += u.exposed;
      EXPECT_NEAR(exposed, t.exposed, 1e-12);
    }
    Fabric own = ndr();  // processors that move the bytes themselves
    own.beside_compute = false;
    const RankStep t = simulate(work, mode, 64, own);
    EXPECT_NEAR(t.exposed / sent(t).seconds, 1, 1e-9) << name_of(mode);
  }
}

TEST(Scale, OneRankIsThePlanOfOne) {
  const config::Config c = config_of("gqa-180m");
  const StepWork work = step_work(c, card("h200"));
  for (const Mode mode : kModes) {
    const RankStep t = simulate(work, mode, 1, ndr());
    EXPECT_TRUE(t.collectives.empty());
    EXPECT_NEAR(t.total() / work.compute(), 1, 1e-12);
    const Plan p = make_plan(c, card("h200"));
    EXPECT_EQ(memory_on_rank(p, work, mode, 1).total(), p.memory.total());
  }
  EXPECT_EQ(straggler_share(1), 0);
  EXPECT_NEAR(expected_slowest(2), 0.5641896, 1e-6);  // one over the root of pi
  EXPECT_NEAR(expected_slowest(1024), 3.24824, 1e-4);
}

TEST(Scale, ModesShareOutWhatTheySay) {
  const config::Config c = config_of("llama-1.36b");
  const Plan p = make_plan(c, card("h200"));
  const StepWork work = step_work(c, card("h200"));
  const RankMemory ddp = memory_on_rank(p, work, Mode::ddp, 64), zero1 = memory_on_rank(p, work, Mode::zero1, 64),
                   fsdp = memory_on_rank(p, work, Mode::fsdp, 64);
  const auto part = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  EXPECT_EQ(ddp.masters, p.memory.masters);
  EXPECT_EQ(ddp.moments, p.memory.moments);
  EXPECT_NEAR(64 * part(zero1.masters, ddp.masters), 1, 1e-3);
  EXPECT_NEAR(64 * part(zero1.moments, ddp.moments), 1, 1e-3);
  EXPECT_EQ(zero1.working_copies, ddp.working_copies);
  EXPECT_EQ(zero1.gradients, ddp.gradients);
  EXPECT_NEAR(64 * part(fsdp.gradients, ddp.gradients), 1, 1e-3);
  EXPECT_NEAR(64 * part(fsdp.working_copies, ddp.working_copies), 1, 1e-3);
  EXPECT_GT(fsdp.gathered, 0);
  EXPECT_LT(fsdp.total(), zero1.total());
  EXPECT_LT(zero1.total(), ddp.total());
}

TEST(Scale, TakesTheFastestModeThatFits) {
  const ScalePlan small = plan_ranks(config_of("gqa-180m"), card("h200"), ndr(), 64);
  EXPECT_EQ(small.choice().mode, Mode::zero1) << why(small);
  EXPECT_TRUE(small.choice().fits);
  EXPECT_LT(small.choice().efficiency, 1);
  EXPECT_GT(small.choice().efficiency, 0.8);
  double before = 2;
  for (const RankPlan& r : small.scaling) {
    EXPECT_LT(r.efficiency, before) << r.ranks;
    before = r.efficiency;
  }

  const std::vector<std::string> thirteen_b = {"model.layers=40",    "model.hidden=5120", "model.heads=40",
                                               "model.kv_heads=40",  "model.ffn=13824",   "model.vocab=32000",
                                               "train.batch_size=2", "train.accumulate=1"};
  const ScalePlan large = plan_ranks(config_of("llama-1.36b", thirteen_b), card("h100"), ndr("h100"), 64);
  EXPECT_EQ(large.choice().mode, Mode::fsdp) << why(large);
  EXPECT_TRUE(large.choice().fits);
  EXPECT_FALSE(large.modes[0].fits) << "masters and moments alone are more than the card";
  EXPECT_NE(why(large).find("ddp needs"), std::string::npos) << why(large);

  std::vector<std::string> asked = thirteen_b;
  asked.emplace_back("parallel.mode=ddp");
  const ScalePlan forced = plan_ranks(config_of("llama-1.36b", asked), card("h100"), ndr("h100"), 64);
  EXPECT_EQ(forced.choice().mode, Mode::ddp);
  EXPECT_NE(why(forced).find("ddp does not fit"), std::string::npos) << why(forced);
}

}  // namespace
}  // namespace redline::perf
