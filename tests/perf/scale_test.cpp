// A plan for several ranks. What it promises of any configuration: all of the step's work, all of the parameters, every
// byte that a mode has to send, and no time that is hidden under nothing. The mode of ranks: the fastest that fits, and
// zero1 where several are. The fit, and what it is worth: its one constant is found again from the runs it was fitted
// on, and the runs that it was not fitted on are predicted.
#include "perf/scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "base/files.h"
#include "io/json.h"
#include "model/lowering.h"
#include "perf/machines.h"
#include "program/program.h"
#include "testing/paths.h"
#include "testing/says.h"
#include "train/memory_advice.h"
#include "train/on_ranks.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

using testing::says;

Fabric ndr(const char* name = "h200") { return fabric_of(card_called(name), network_called("ndr"), 8, 8); }

struct SentBytes {
  double gradients = 0, weights = 0, seconds = 0;
};
SentBytes sent(const RankStep& times) {
  SentBytes s;
  for (const CollectiveUse& u : times.collectives) {
    if (u.of == "gradients") s.gradients += u.bytes;
    if (u.of.starts_with("weights")) s.weights += u.bytes;
    s.seconds += u.seconds;
  }
  return s;
}

Spread spread(Mode mode, int ranks, const Fabric& fabric = ndr()) { return {mode, ranks, fabric}; }

// The step of a rank is what its programs send, whatever perf makes of it.
TEST(Scale, EveryModeSendsItsBytes) {
  const config::Config c = config_of("llama-1.36b", {"train.accumulate=3"});
  const Machine h200 = machine_named("h200");
  const auto of = [&](const config::Config& config, Mode mode) {
    return sent(StepWalk(config, h200, spread(mode, 16)).times());
  };
  const StepWalk alone(c, h200);
  const auto n = static_cast<double>(alone.lowered()->layout.total);
  const SentBytes ddp = of(c, Mode::ddp), zero1 = of(c, Mode::zero1), fsdp = of(c, Mode::fsdp);
  EXPECT_DOUBLE_EQ(ddp.gradients, 4 * n);
  EXPECT_DOUBLE_EQ(ddp.weights, 0);
  EXPECT_DOUBLE_EQ(zero1.gradients, 4 * n);
  EXPECT_DOUBLE_EQ(zero1.weights, 2 * n) << "once a step";
  EXPECT_NEAR(fsdp.gradients / (3 * 4 * n), 1, 1e-6) << "each micro-step";
  EXPECT_NEAR(fsdp.weights / (3 * 2 * 2 * n), 1, 0.06) << "each micro-step, there and back, but for the small ones";
  EXPECT_DOUBLE_EQ(of(config_of("llama-1.36b", {"train.accumulate=3", "parallel.wire=bf16"}), Mode::ddp).gradients,
                   2 * n);
}

// Whatever the network: no longer than one after the other, no shorter than the longer of both.
// Rows that ranks share: a rank has its share of the tokens and all of the step's work is done, attention sends
// queries, keys and values there and their results back, and the state is as without.
TEST(Scale, RanksOfARowShareItsTokensAndItsWork) {
  const Machine h200 = machine_named("h200");
  const std::vector<std::string> keys = {"train.batch_size=1", "train.accumulate=1", "train.seq_len=16384",
                                         "train.recompute=none"};
  const auto with = [&](int sequence) {
    std::vector<std::string> all = keys;
    all.push_back(fmt::format("parallel.sequence={}", sequence));
    return config_of("llama-1.36b", all);
  };
  for (const Mode mode : kModes) {
    const Plan whole = make_plan(with(1), h200, spread(mode, 8)), shared = make_plan(with(2), h200, spread(mode, 8));
    EXPECT_EQ(2 * shared.tokens_per_step, whole.tokens_per_step);
    EXPECT_NEAR(shared.flops.total() / whole.flops.total(), 1, 1e-9) << "a token";
    EXPECT_NEAR(shared.flops.palm() / whole.flops.palm(), 1, 1e-9);
    EXPECT_NEAR(shared.times.compute / whole.times.compute, 0.5, 0.1);
    EXPECT_EQ(shared.memory.moments, whole.memory.moments);
    EXPECT_LT(shared.memory.activations, 0.65 * static_cast<double>(whole.memory.activations)) << name_of(mode);
    EXPECT_LT(std::abs(shared.memory.gathered - whole.memory.gathered), 1 << 20) << name_of(mode);
    const config::Model m = with(2).model;
    const double row = 2.0 * static_cast<double>((2 * m.heads + 2 * m.kv_heads) * m.head_dim);
    double exchanged = 0;
    for (const CollectiveUse& u : shared.times.collectives)
      if (u.collective == Collective::all_to_all) exchanged += u.bytes;
    EXPECT_NEAR(exchanged / (2 * row * 16384 / 2 * static_cast<double>(m.layers)), 1, 1e-9) << name_of(mode);
  }
  const ScalePlan plan = plan_ranks(with(2), h200, ndr(), 8);
  EXPECT_EQ(plan.choice().tokens_of_ranks(), 4 * 16384);
  for (const RankPlan& p : plan.scaling) EXPECT_TRUE(p.ranks == 1 || p.ranks % 2 == 0) << p.ranks;
}

TEST(Scale, CommunicationHidesUnderComputeAndNothingElse) {
  const config::Config c = config_of("llama-1.36b", {"train.accumulate=1"});
  for (const Mode mode : kModes) {
    double before = 0;
    for (const double slower : {1e-6, 0.1, 1.0, 10.0, 100.0}) {
      Fabric f = ndr();
      f.inside.bus_bandwidth /= slower;
      f.between.bus_bandwidth /= slower;
      const RankStep t = StepWalk(c, machine_named("h200"), spread(mode, 64, f)).times();
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
    const RankStep t = StepWalk(c, machine_named("h200"), spread(mode, 64, own)).times();
    EXPECT_NEAR(t.exposed / sent(t).seconds, 1, 1e-9) << name_of(mode);
  }
}

// A clock does one thing at a time, nothing starts before the node that starts it, and the bars of a trace are those of
// the step.
TEST(Scale, TheTimelineIsTheStep) {
  const config::Config c = config_of("gqa-180m", {"train.batch_size=8", "train.accumulate=7"});
  for (const Mode mode : kModes) {
    const StepWalk step(c, machine_named("h200"), spread(mode, 16));
    double seconds = 0;
    std::int64_t micro_steps = 0;
    for (const StepWalk::Run& run : step.runs()) {
      std::array<double, kClocks.size()> ends{};
      for (const ClockSpan& span : run.timeline.spans) {
        double& end = ends[static_cast<std::size_t>(span.clock)];
        EXPECT_GE(span.begin, end) << span.node->full_name();
        EXPECT_GE(span.end, span.begin) << span.node->full_name();
        end = span.end;
      }
      EXPECT_DOUBLE_EQ(ends[0], run.timeline.end) << run.program << ": every program waits for what it started";
      EXPECT_LE(ends[static_cast<std::size_t>(Clock::network)], run.timeline.end);
      seconds += static_cast<double>(run.times) * run.timeline.end;
      if (run.program != model::kUpdate) micro_steps += run.times;
    }
    EXPECT_EQ(micro_steps, 7);
    const RankStep times = step.times();
    EXPECT_NEAR(seconds / (times.total() - times.stragglers), 1, 1e-9) << name_of(mode);

    const io::Json trace = io::parse_json(chrome_trace(step, "a step"), "trace");
    double last = 0;
    for (const io::Json& event : trace.at("traceEvents"))
      if (event.at("ph") == "X") last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
    EXPECT_NEAR(last / (1e6 * seconds), 1, 1e-9) << name_of(mode);
  }
}

// Weights that are needed first are gathered first: nothing waits for what stands behind it.
TEST(Scale, Zero1GathersInTheOrderOfUse) {
  const StepWalk step(config_of("llama-1.36b", {"train.accumulate=1"}), machine_named("h200"),
                      spread(Mode::zero1, 1024));
  std::vector<std::int32_t> started, waited;
  for (const program::Node& node : step.lowered()->set.find(model::kFirst).nodes)
    if (std::holds_alternative<dist::GatherShards<program::ValueId>>(node.op))
      (node.when == program::When::start ? started : waited).push_back(node.pair);
  EXPECT_GT(started.size(), 18u);
  EXPECT_EQ(started, waited);
  for (const CollectiveUse& u : step.times().collectives)
    if (u.of == "weights") {
      EXPECT_LT(u.exposed, 0.3 * u.seconds);
    }
}

// The memory of a plan is the arena of the programs that the rank with the most of them runs: what a run compares with
// the room, too, whichever rank asks.
TEST(Scale, ARanksMemoryIsItsArena) {
  for (const auto& [optimizer, on_host] : {std::pair{"adamw", false}, {"muon", false}, {"muon", true}}) {
    config::Config c = config_of("gqa-180m", {fmt::format("optim.name={}", optimizer)});
    c.memory.placement.moments = on_host;
    for (const Mode mode : kModes)
      for (const int ranks : {2, 6}) {
        const Plan p = make_plan(c, machine_named("h200"), spread(mode, ranks));
        const std::string name =
            fmt::format("{}{}, {} on {}", optimizer, on_host ? ", moments moved" : "", name_of(mode), ranks);
        std::int64_t most = 0;
        model::LoweringOptions o = model::lowering_options(c, device::Kind::cuda);
        for (int rank = 0; rank < ranks; ++rank) {
          o.sharing = {rank, ranks, mode};
          most = std::max(most, model::lower(c.model, o).set.memory.device.total);
        }
        EXPECT_EQ(p.memory.arena, most) << name;
        EXPECT_EQ(train::memory_needed(c, device::Kind::cuda, {1, ranks, mode}), most) << name;
        const std::int64_t beside = p.memory.total() - p.memory.context - p.memory.arena;
        EXPECT_EQ(beside, 768 << 20) << name << ": the library's";
      }
  }
}

TEST(Scale, OneRankIsThePlanOfOne) {
  const config::Config c = config_of("gqa-180m");
  const Plan p = make_plan(c, machine_named("h200"));
  for (const Mode mode : kModes) {
    const Plan one = make_plan(c, machine_named("h200"), spread(mode, 1));
    EXPECT_TRUE(one.times.collectives.empty());
    EXPECT_EQ(one.expected.step_seconds, p.expected.step_seconds);
    EXPECT_EQ(one.memory.total(), p.memory.total());
  }
  EXPECT_EQ(expected_slowest(1), 0);
  EXPECT_NEAR(expected_slowest(2), 0.5641896, 1e-6);  // one over the root of pi
  EXPECT_NEAR(expected_slowest(1024), 3.24824, 1e-4);
}

TEST(Scale, ModesShareOutWhatTheySay) {
  const config::Config c = config_of("llama-1.36b");
  const auto memory = [&](Mode mode, int ranks) {
    return make_plan(c, machine_named("h200"), spread(mode, ranks)).memory;
  };
  const MemoryKinds one = memory(Mode::ddp, 1), ddp = memory(Mode::ddp, 64), zero1 = memory(Mode::zero1, 64),
                    fsdp = memory(Mode::fsdp, 64);
  const auto part = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  EXPECT_EQ(ddp.masters, one.masters);
  EXPECT_EQ(ddp.moments, one.moments);
  EXPECT_NEAR(64 * part(zero1.masters, ddp.masters), 1, 1e-3);
  EXPECT_NEAR(64 * part(zero1.moments, ddp.moments), 1, 1e-3);
  EXPECT_EQ(zero1.working_copies, ddp.working_copies);
  EXPECT_EQ(zero1.gradients, ddp.gradients);
  EXPECT_NEAR(64 * part(fsdp.gradients, ddp.gradients), 1, 1e-3);
  EXPECT_NEAR(64 * part(fsdp.working_copies, ddp.working_copies), 1, 1e-3);
  EXPECT_GT(fsdp.gathered, 0);
  EXPECT_EQ(zero1.gathered, 0);
  EXPECT_LT(fsdp.total(), zero1.total());
  EXPECT_LT(zero1.total(), ddp.total());
}

TEST(Scale, TakesTheFastestModeThatFits) {
  const ScalePlan small = plan_ranks(config_of("gqa-180m"), machine_named("h200"), ndr(), 64);
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
  const ScalePlan large = plan_ranks(config_of("llama-1.36b", thirteen_b), machine_named("h100"), ndr("h100"), 64);
  EXPECT_EQ(large.choice().mode, Mode::fsdp) << why(large);
  EXPECT_TRUE(large.choice().fits);
  EXPECT_FALSE(large.modes[0].fits) << "masters and moments alone are more than the card";
  EXPECT_TRUE(says(why(large), {"ddp needs"}));

  std::vector<std::string> asked = thirteen_b;
  asked.emplace_back("parallel.mode=ddp");
  const ScalePlan forced = plan_ranks(config_of("llama-1.36b", asked), machine_named("h100"), ndr("h100"), 64);
  EXPECT_EQ(forced.choice().mode, Mode::ddp);
  EXPECT_TRUE(says(why(forced), {"ddp does not fit"}));
}

// 30.5 billion parameters with AdamW are 489 GB of state: no rank has them whole on 8 to 64 cards of 141 GB, and fsdp
// shares them out by expert.
TEST(Scale, ThirtyBillionInExpertsFitByFsdp) {
  const config::Config c = config_of("qwen3-30b-a3b");
  for (const int ranks : {8, 16, 64}) {
    const ScalePlan plan = plan_ranks(c, machine_named("h200"), ndr(), ranks);
    EXPECT_EQ(plan.choice().mode, Mode::fsdp) << ranks << ": " << why(plan);
    EXPECT_TRUE(plan.choice().fits) << ranks;
    EXPECT_FALSE(plan.modes[0].fits) << "ddp on " << ranks;
    EXPECT_NEAR(static_cast<double>(plan.choice().parameters), 30.5e9, 0.1e9);
    EXPECT_NEAR(static_cast<double>(plan.choice().active_parameters), 3.35e9, 0.05e9);
    const MemoryKinds& m = plan.choice().memory;
    const double state = static_cast<double>(m.masters + m.moments + m.working_copies + m.gradients);
    const int holders = plan.choice().shards > 0 ? plan.choice().shards : ranks;
    EXPECT_NEAR(state * holders / 30.5e9, 18, 0.5) << ranks;  // bytes a parameter: 4 + 8 + 2 + 4
    EXPECT_GT(plan.choice().expected.mfu, 0.1) << ranks;
  }
}

// fsdp inside of nodes: weights and gradients as over all of them, and a shard's gradients between nodes once a step.
TEST(Scale, CopiesOfTheStateAddUpOnceAStep) {
  const Machine h200 = machine_named("h200");
  const std::vector<std::string> keys = {"train.batch_size=4", "train.accumulate=3", "train.recompute=none"};
  const config::Config flat = config_of("llama-1.36b", keys);
  config::Config copies = flat;
  copies.parallel.shards = 8;
  const auto n = static_cast<double>(StepWalk(flat, h200).lowered()->layout.total);
  for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
    const RankStep all = StepWalk(flat, h200, spread(mode, 64)).times();
    const RankStep some = StepWalk(copies, h200, spread(mode, 64)).times();
    const auto bytes = [](const RankStep& step, Collective collective, std::string_view of) {
      double sum = 0;
      for (const CollectiveUse& u : step.collectives)
        if (u.collective == collective && u.of.starts_with(of)) sum += u.bytes;
      return sum;
    };
    for (const auto& [collective, of] :
         {std::pair{Collective::reduce_shards, "gradients"}, std::pair{Collective::gather_shards, "weights"}})
      EXPECT_EQ(bytes(some, collective, of), bytes(all, collective, of)) << name_of(mode);
    EXPECT_EQ(bytes(all, Collective::all_reduce, "gradients"), 0) << name_of(mode);
    EXPECT_NEAR(bytes(some, Collective::all_reduce, "gradients") / (4 * n / 8), 1, 0.02) << name_of(mode);
    const MemoryKinds eighth = make_plan(copies, h200, spread(mode, 64)).memory,
                      node = make_plan(flat, h200, spread(mode, 8)).memory;
    EXPECT_EQ(eighth.moments, node.moments) << name_of(mode);
    EXPECT_EQ(eighth.gradients, node.gradients) << name_of(mode);
  }
  // A ring of one GPU a node has its share of the node's network cards; all of them together have all.
  const Fabric f = ndr();
  EXPECT_NEAR(collective_seconds(f.every(8), Collective::all_reduce, 1e9, 8) /
                  collective_seconds(f, Collective::all_reduce, 8e9, 64),
              1, 0.2);
  EXPECT_EQ(f.every(8).nodes(8), 8);
  EXPECT_EQ(f.every(2).nodes(8), 2);
}

// What crosses the network once a step instead of once a micro-step is chosen where that is slow, and only there.
TEST(Scale, ASlowNetworkIsCrossedOnceAStep) {
  const auto plan = [](const char* network, std::vector<std::string> more = {}) {
    std::vector<std::string> keys = {
        "model.layers=48",   "model.hidden=5120",  "model.heads=40",     "model.kv_heads=40", "model.ffn=13824",
        "model.vocab=32000", "train.batch_size=2", "train.accumulate=4", "optim.name=adamw",  "memory.fit=none"};
    keys.insert(keys.end(), more.begin(), more.end());
    return plan_ranks(config_of("llama-1.36b", keys), machine_named("h100"),
                      fabric_of(card_called("h100"), network_called(network), 8, 8), 64);
  };
  const ScalePlan slow = plan("ethernet"), fast = plan("ndr");
  EXPECT_EQ(slow.choice().name(), "fsdp of 8") << why(slow);
  EXPECT_EQ(slow.config.parallel.shards, 8);
  EXPECT_TRUE(says(why(slow), {"fsdp is "}));
  EXPECT_EQ(fast.choice().name(), "fsdp") << why(fast);
  EXPECT_EQ(fast.config.parallel.shards, 0);
  EXPECT_TRUE(says(why(fast), {"fsdp of 8"}));
  EXPECT_GT(slow.choice().expected.tokens_per_s, 1.2 * slow.modes.back().expected.tokens_per_s);
  for (const RankPlan& p : slow.scaling) EXPECT_TRUE(p.ranks == 1 || p.ranks % 8 == 0) << p.ranks;
  // What was asked for is planned as it was.
  EXPECT_EQ(plan("ethernet", {"parallel.mode=fsdp"}).choice().name(), "fsdp");
  const ScalePlan asked = plan("ndr", {"parallel.mode=fsdp", "parallel.shards=16"});
  EXPECT_EQ(asked.choice().name(), "fsdp of 16");
  EXPECT_EQ(asked.modes.size(), 2u) << "ddp shares nothing out";
}

TEST(Scale, RowsThatWereAskedForStay) {
  const auto settings = [](const std::vector<std::string>& asked) {
    std::vector<Setting> all;
    for (const RankPlan& p : plan_ranks(config_of("gqa-180m", asked), machine_named("h200"), ndr(), 8).modes)
      all.push_back(p.setting);
    return all;
  };
  for (const Setting& s : settings({"train.batch_size=16", "train.accumulate=6"}))
    EXPECT_EQ(s, (Setting{16, 6, "none"}));
  for (const Setting& s : settings({"train.batch_size=auto"})) EXPECT_GT(s.batch_size, 16) << "they are open";
}

RankMachine h200s(int per_node, std::int64_t available) {
  const Card& card = *find_card("NVIDIA H200");
  RankMachine m{machine_of(card), fabric_of(card, network_called(kNoNetwork), per_node, per_node)};
  m.machine.memory = available;
  return m;
}

// What is advised for several ranks fits there, and where nothing fits there is no choice.
TEST(Scale, AdviceForRanksFits) {
  const std::vector<std::string> asked = {"train.batch_size=2", "train.accumulate=1", "optim.name=adamw",
                                          "memory.fit=none"};
  const Card& card = card_called("rtx-4090");
  const Fabric fabric = fabric_of(card, network_called("ndr"), 8, 8);
  const auto plan = [&](std::vector<std::string> settings, int ranks, double gib) {
    settings.insert(settings.begin(), asked.begin(), asked.end());
    Machine machine = machine_of(card);
    machine.memory = static_cast<std::int64_t>(gib * 0x1p30);
    return plan_ranks_or_relax(config_of("qwen3-1.8b", settings), machine, fabric, ranks);
  };
  const ScalePlan ddp = plan({"parallel.mode=ddp"}, 8, 23.5);
  EXPECT_TRUE(ddp.choice().fits) << why(ddp);
  EXPECT_NE(ddp.choice().mode, Mode::ddp);
  EXPECT_TRUE(says(why(ddp), {"as it was asked for nothing fits", "ddp"}));

  const ScalePlan none = plan({}, 2, 12);
  EXPECT_FALSE(none.choice().fits);
  EXPECT_TRUE(says(why(none), {"no mode fits into 12.00 GiB", "--gpus"}));
  EXPECT_EQ(why(none).find("no mode does not"), std::string::npos);

  // A little less than the least that it needs as it was asked for.
  ASSERT_TRUE(none.asked_for);
  const ScalePlan tight = plan({}, 2, static_cast<double>(none.asked_for->memory.total()) * 0x1p-30 - 0.3);
  ASSERT_TRUE(tight.asked_for) << why(tight);
  ASSERT_TRUE(tight.choice().fits) << why(tight);
  EXPECT_TRUE(says(why(tight), {"optim.moments="}));

  ASSERT_GT(none.enough_gpus, 2);
  EXPECT_TRUE(plan({}, none.enough_gpus, 12).choice().fits);
  EXPECT_FALSE(plan({}, none.enough_gpus, 12).asked_for);
  const ScalePlan tiny = plan({}, 2, 6);  // whatever the GPUs: rows must be shorter, too
  ASSERT_GT(tiny.enough_gpus, 2) << why(tiny);
  EXPECT_TRUE(plan(tiny.enough_with, tiny.enough_gpus, 6).choice().fits) << why(tiny);
}

// Rows of 4104 tokens are 513 for each of eight ranks, and halves of them cannot be shared alike.
TEST(Scale, AdviceForSharedRowsKeepsThemShared) {
  const config::Config c =
      config_of("gqa-180m", {"model.heads=8", "model.kv_heads=8", "parallel.sequence=8", "train.seq_len=4104",
                             "train.batch_size=1", "train.accumulate=1", "memory.fit=none"});
  Machine machine = machine_named("h100");
  const std::int64_t least = least_plan(c, machine, {.mode = Mode::fsdp, .ranks = 8}).memory.total();
  for (const std::int64_t less : {std::int64_t{1}, least / 2}) {
    machine.memory = least - less;
    const ScalePlan s = plan_ranks_or_relax(c, machine, ndr("h100"), 8);
    EXPECT_EQ(s.config.train.seq_len, 4104) << why(s);
    for (const std::string& key : s.enough_with) EXPECT_FALSE(key.starts_with("train.seq_len")) << key;
  }
}

// A run on ranks that does not fit moves bytes, so its plan does.
TEST(Scale, WhatFitsInNoModeMovesBytesAsARunDoes) {
  const Card& card = card_called("rtx-4090");
  Machine machine = machine_of(card);
  machine.memory = std::int64_t{12} << 30;
  const config::Config c = config_of("qwen3-1.8b", {"train.batch_size=2", "train.accumulate=1", "optim.name=adamw"});
  const ScalePlan s = plan_ranks_or_relax(c, machine, fabric_of(card, network_called("ndr"), 8, 8), 2);
  const RankPlan& p = s.choice();
  ASSERT_TRUE(p.fits) << why(s);
  EXPECT_EQ(p.mode, Mode::fsdp);
  EXPECT_EQ(p.setting, setting_of(c));
  EXPECT_GT(p.memory.host_arena, 0);
  EXPECT_LE(p.memory.total(), machine.memory);
  EXPECT_TRUE(says(why(s), {"host's memory", " by the plan"}));
  EXPECT_TRUE(s.relaxed.empty());
  for (const std::int64_t less : {0, 2}) {  // the host's memory is both ranks'
    machine.host_memory = 2 * p.memory.host_arena - less;
    const ScalePlan shared = plan_ranks_or_relax(c, machine, fabric_of(card, network_called("ndr"), 8, 8), 2);
    EXPECT_EQ(shared.choice().memory.host_arena == p.memory.host_arena, less == 0);
    EXPECT_LE(2 * shared.choice().memory.host_arena, machine.host_memory);
  }
  machine = machine_of(card);
  machine.memory = std::int64_t{1} << 30;
  const ScalePlan none = plan_ranks_or_relax(c, machine, fabric_of(card, network_called("ndr"), 8, 8), 2);
  ASSERT_FALSE(none.choice().fits);
  EXPECT_TRUE(says(why(none), {" a rank, and ", " with all that can lie in the host's memory there; "})) << why(none);
  machine.memory = none.least_moved.value().memory.total();  // is enough
  const ScalePlan least = plan_ranks_or_relax(c, machine, fabric_of(card, network_called("ndr"), 8, 8), 2);
  EXPECT_TRUE(least.choice().fits) << why(least);
}

// Shorter rows that fit with bytes moved alone are named before more GPUs are.
TEST(Scale, ShorterRowsMayFitWithBytesMoved) {
  const Card& card = card_called("rtx-4090");
  const config::Config c = config_of(
      "llama-1.36b", {"train.seq_len=65536", "train.batch_size=1", "train.accumulate=3", "memory.limit=4GiB"});
  const ScalePlan s = plan_ranks_or_relax(c, machine_of(card), fabric_of(card, network_called("ndr"), 8, 8), 2);
  ASSERT_TRUE(s.choice().fits) << why(s);
  EXPECT_FALSE(s.moved.empty());
  EXPECT_LT(s.config.train.seq_len, 65536);
  EXPECT_EQ(s.config.train.seq_len * s.config.train.accumulate, 3 * 65536);
  EXPECT_TRUE(says(why(s), {fmt::format("with train.seq_len={}", s.config.train.seq_len)})) << why(s);
}

// Every mode that a run takes is planned, in eight bits, too.
TEST(Scale, PlansTheModesThatARunTakes) {
  const config::Config c = config_of("gqa-180m", {"precision.matmul=fp8"});
  const Card& card = card_called("h200");
  const Fabric fabric = fabric_of(card, network_called("ndr"), 8, 8);
  const ScalePlan s = plan_ranks(c, machine_of(card), fabric, 8);
  std::vector<Mode> planned;
  for (const RankPlan& p : s.modes) planned.push_back(p.mode);
  EXPECT_EQ(planned, train::modes_for(c, 8));
  EXPECT_EQ(planned.size(), kModes.size());
}

// Deep models on many cards, and those that nothing holds: a bisection plans a few of hundreds of settings.
TEST(Scale, FewSettingsArePlanned) {
  std::size_t planned = 0;
  SearchOptions options;
  options.progress = [&](const std::string&, std::size_t number, std::size_t) { planned = std::max(planned, number); };
  const config::Config c = config_of("quick", {"train.batch_size=720720", "train.seq_len=64"});  // 240 divisors
  const Choice choice = choose(c, machine_named("h200"), options);
  EXPECT_GT(choice.considered, 300u);
  EXPECT_LT(planned, 50u);
  ASSERT_FALSE(choice.best.empty());
  // What the bisection takes for granted: more rows need more memory and are no slower.
  const Setting& best = choice.best[0].setting;
  for (const std::int64_t fewer : {2, 3}) {
    const Plan p = make_plan(with_setting(c, {best.batch_size / fewer, best.accumulate * fewer, best.recompute}),
                             machine_named("h200"));
    EXPECT_LT(p.memory.total(), choice.best[0].memory.total());
    EXPECT_LE(p.expected.tokens_per_s, choice.best[0].expected.tokens_per_s);
  }
}

class SmallDevice final : public device::CpuDevice {
 public:
  explicit SmallDevice(std::int64_t bytes) : CpuDevice(1), bytes_(bytes) {}
  std::int64_t available_bytes() const override { return bytes_; }

 private:
  std::int64_t bytes_;
};

// Where one rank alone holds nothing, its share may.
TEST(AutoBatchOnRanks, LooksAtARanksShare) {
  const std::vector<std::string> keys = {"model.hidden=256",   "model.ffn=1024",        "model.vocab=32768",
                                         "train.accumulate=4", "train.batch_size=auto", "optim.name=adamw"};
  const config::Config c = testing::tiny_run(keys);
  const std::int64_t alone = least_plan(c, cpu_machine()).memory.total();
  const std::int64_t shared = least_plan(c, cpu_machine(), {.mode = Mode::fsdp, .ranks = 4}).memory.total();
  ASSERT_LT(shared, alone);
  SmallDevice device(alone - 1);
  EXPECT_TRUE(says(testing::error_of([&] { find_batch_size(c, device, {.measure = false}); }), {"nothing fits"}));
  const AutoBatch found = find_batch_size_on_ranks(c, device, 4, 1);
  EXPECT_EQ(setting_of(found.config).rows(), setting_of(c).rows());
  EXPECT_FALSE(found.config.train.automatic_batch_size);
  EXPECT_EQ(found.tried[0].state, TrialState::planned);

  SmallDevice tiny(4 * shared - 4);  // which four ranks of a machine share
  EXPECT_TRUE(says(testing::error_of([&] { find_batch_size_on_ranks(c, tiny, 4, 4); }),
                   {"train.batch_size", "parallel.mode = \"fsdp\"", "more ranks"}));
}

TEST(RankMode, WithoutAPlanItIsZero1WhereThatFits) {
  const config::Config quick = config_of("quick");
  RankMachine cpus;
  cpus.machine.kind = device::Kind::cpu;
  cpus.machine.memory = std::int64_t{1} << 40;
  EXPECT_EQ(choose_mode(quick, cpus, 2).mode, dist::Mode::zero1);
  cpus.machine.memory = 1;
  EXPECT_EQ(choose_mode(quick, cpus, 2).mode, dist::Mode::fsdp) << "nothing fits";
  // Whole matrices make shards uneven: the last rank has less than others.
  const config::Config muon = config_of("quick", {"optim.name=muon"});
  cpus.machine.memory = train::memory_needed(muon, device::Kind::cpu, {0, 4, Mode::zero1});
  EXPECT_EQ(choose_mode(muon, cpus, 4).why, "it fits");
  --cpus.machine.memory;
  EXPECT_EQ(choose_mode(muon, cpus, 4).mode, dist::Mode::fsdp);
}

TEST(RankMode, ThePlanSaysWhichOfThoseThatFitIsFastest) {
  const config::Config c = config_of("llama-1.36b");
  constexpr std::int64_t kGib = std::int64_t{1} << 30;
  const ModeChoice roomy = choose_mode(c, h200s(8, 1000 * kGib), 8);
  EXPECT_NE(roomy.mode, dist::Mode::fsdp) << roomy.why;
  EXPECT_TRUE(says(roomy.why, {"ddp", "fsdp"}));
  // Less memory than what does not shrink: only what shares most out is left.
  std::int64_t low = kGib, high = 1000 * kGib;
  while (high - low > kGib) {
    const std::int64_t middle = (low + high) / 2;
    (choose_mode(c, h200s(8, middle), 8).why.starts_with("nothing") ? low : high) = middle;
  }
  EXPECT_EQ(choose_mode(c, h200s(8, high), 8).mode, dist::Mode::fsdp);
}

// A run on cards whose links are known chooses as its plan does, fsdp inside of nodes among the ways; and says which
// network it takes for granted.
TEST(RankMode, ARunChoosesAsItsPlanDoes) {
  const std::vector<std::string> fifteen_b = {"model.layers=48",   "model.hidden=5120", "model.heads=40",
                                              "model.kv_heads=40", "model.ffn=13824",   "model.vocab=32000",
                                              "optim.name=adamw",  "train.batch_size=1"};
  std::set<std::string> chosen;
  for (const char* network : {"ndr", "ethernet"})
    for (const char* micro_batches : {"train.accumulate=1", "train.accumulate=8"})
      for (const bool large : {true, false}) {
        std::vector<std::string> keys = large ? fifteen_b : std::vector<std::string>{"train.batch_size=4"};
        keys.emplace_back(micro_batches);
        const config::Config c = config_of("llama-1.36b", keys);
        const Card& card = card_called("h100");
        const RankMachine m{machine_of(card), fabric_of(card, network_called(network), 8, 8)};
        const ScalePlan plan = plan_ranks(c, m.machine, *m.fabric, 64);
        ASSERT_EQ(plan.choice().setting, setting_of(c)) << "its own rows, as a run has them";
        const ModeChoice run = choose_mode(c, m, 64);
        EXPECT_EQ(run.name(), plan.choice().name()) << network << ": " << run.why << "; " << why(plan);
        EXPECT_TRUE(says(run.why, {"NDR InfiniBand", "parallel.network"}));
        chosen.insert(run.name());
      }
  EXPECT_TRUE(chosen.contains("fsdp of 8"));
  EXPECT_GT(chosen.size(), 2u);
  const config::Config c = config_of("llama-1.36b", fifteen_b);
  EXPECT_EQ(choose_mode(c, h200s(8, std::int64_t{1} << 40), 8).why.find("NDR"), std::string::npos) << "one machine";
}

// The key has the networks of the table, and whoever names one is asked to take nothing for granted.
TEST(RankMode, TheNetworkIsAKey) {
  std::vector<std::string_view> names = {"auto"};
  for (const Network& network : networks()) names.push_back(network.id);
  EXPECT_EQ(config::find_key("parallel.network")->choices, names);
  EXPECT_EQ(network_between(config_of("quick").parallel).id, kUsualNetwork);
  const config::Config c = config_of("llama-1.36b", {"parallel.network=ethernet"});
  EXPECT_EQ(network_between(c.parallel).id, "ethernet");
  const Card& card = card_called("h100");
  const Fabric slow = fabric_between(card, c.parallel, 64, 8),
               planned = fabric_of(card, network_called("ethernet"), 8, 8);
  EXPECT_EQ(slow.between.bus_bandwidth, planned.between.bus_bandwidth) << "as plan --network has it";
  EXPECT_EQ(slow.nodes(64), 8);
  EXPECT_EQ(fabric_between(card, c.parallel, 8, 8).nodes(8), 1);
  config::Parallel rack;
  EXPECT_EQ(fabric_between(card, rack, 64, 4).nodes(64), 16);
  rack.network = kNoNetwork;
  EXPECT_EQ(fabric_between(card, rack, 64, 4).nodes(64), 1);
  const ModeChoice run = choose_mode(c, {machine_of(card), slow}, 64);
  EXPECT_EQ(run.why.find("taken for granted"), std::string::npos) << run.why;
}

// What was chosen is told from what was asked for, and is open again for others.
TEST(RankMode, AChoiceIsKeptAndOpenedAgain) {
  config::Config c = config_of("quick");
  set_mode(c, {{dist::Mode::fsdp, 8}, "it is the fastest"}, 64);
  const config::Config kept = config::parse(config::dump(c), "config.toml");
  EXPECT_EQ(kept.parallel.mode, "fsdp");
  EXPECT_EQ(kept.parallel.shards, 8);
  EXPECT_TRUE(says(kept.origins.prefix({"parallel.shards"}), {"auto on 64 ranks: it is the fastest"}));
  config::Config open = kept;
  reopen_mode(open);
  EXPECT_EQ(open.parallel, config_of("quick").parallel);
  config::Config asked = config_of("quick", {"parallel.mode=fsdp", "parallel.shards=4"});
  reopen_mode(asked);
  EXPECT_EQ(asked.parallel.mode, "fsdp");
  EXPECT_EQ(asked.parallel.shards, 4);
}

// Runs on several numbers of GPUs that others published: what plans for ranks are fitted on and held against. Rows of
// one table that differ in more than the number of GPUs (micro-batches, recompute, offloading) are not here.
struct PublishedRun {
  const char *source, *model;  // the model is one of published_model()
  const char *card, *network;
  Mode mode;
  int gradient_bytes;       // on their way
  int rows, seq_len;        // of a micro-batch
  int few, few_accumulate;  // GPUs that it is compared with, and their micro-batches
  double few_rate;          // tokens a second and GPU there
  int many, many_accumulate;
  double many_rate;
  const char* table;  // "fit", "fp8", "h100", "a100": nothing but the first was fitted
  double measured() const { return many_rate / few_rate; }
};

bool in_fp8(std::string_view model) { return model.ends_with(" fp8"); }

// LLMQ: benchmarks/H100x1.md and H100x8.md of its repository, mean of steps 1 to 5; it shares out the optimizer's state
// and sends gradients in bf16. torchtitan: benchmarks/llama3_h100_202412 and llama3-8b_h200_202506 (RDMA with 400 Gb/s
// a GPU). llm-foundry: scripts/train/benchmarking/README.md, all rows of 2048 tokens. Its H100 table does not name the
// network: taken to be 400 Gb/s a GPU; its A100 table says RoCE, 1600 Gb/s a node. Left out: 1b on 32 A100 with 15,555
// tokens a second, 18% below the same run on 64 and on 16 GPUs.
std::vector<PublishedRun> published_runs() {
  const auto llmq = [](const char* model, int rows, double tokens, double one_ms, double eight_ms) {
    const int n = rows == 32 ? 2 : 4;  // micro-batches
    const double one = 1e3 * tokens / one_ms, eight = 1e3 * tokens / eight_ms / 8;
    const char* const table = in_fp8(model) ? "fp8" : "fit";
    return PublishedRun{"LLMQ", model, "h100", "nvlink", Mode::zero1, 2, rows, 1024, 1, 8 * n, one, 8, n, eight, table};
  };
  // Few GPUs and their rate, many and theirs.
  const auto titan = [](const char* model, const char* card, int few, double rate, int many, double many_rate) {
    return PublishedRun{"torchtitan",
                        model,
                        card,
                        "ndr",
                        Mode::fsdp,
                        4,
                        2,
                        8192,
                        few,
                        1,
                        rate,
                        many,
                        1,
                        many_rate,
                        in_fp8(model) ? "fp8" : "fit"};
  };
  const auto h100 = [](const char* model, int rows, int n, int few, double rate, int many, double many_rate) {
    return PublishedRun{"llm-foundry", model, "h100", "ndr", Mode::fsdp, 4,         rows,  2048,
                        few,           n,     rate,   many,  n,          many_rate, "h100"};
  };
  const auto a100 = [](const char* model, int rows, int few, double rate, int many, double many_rate) {
    return PublishedRun{"llm-foundry", model, "a100-40", "roce-200", Mode::fsdp, 2,         rows,  2048,
                        few,           1,     rate,      many,       1,          many_rate, "a100"};
  };
  return {
      llmq("qwen2.5-0.5b", 32, 524288, 3501.0, 450.6),
      llmq("qwen2.5-1.5b", 32, 524288, 8855.8, 1146.0),
      llmq("qwen2.5-3b", 16, 524288, 16962.2, 2184.2),
      llmq("qwen2.5-1.5b fp8", 32, 524288, 7186.8, 928.6),
      llmq("qwen2.5-3b fp8", 16, 524288, 12997.0, 1673.6),
      titan("llama3-8b eager", "h100", 8, 5762, 128, 5605),
      titan("llama3-8b", "h100", 8, 6667, 128, 6514),
      titan("llama3-8b fp8", "h100", 8, 8532, 128, 8380),
      titan("llama3-8b fp8", "h200", 32, 10938, 64, 10753),
      h100("mpt-760m", 24, 1, 16, 68551, 32, 67971),
      h100("mpt-1b", 20, 1, 16, 46037, 32, 45130),
      h100("mpt-1b", 20, 1, 16, 46037, 64, 44402),
      h100("mpt-3b", 6, 3, 32, 23021, 64, 22525),
      h100("mpt-13b", 2, 1, 8, 4792, 16, 4767),
      h100("mpt-13b", 2, 1, 8, 4792, 32, 4811),
      h100("mpt-13b", 2, 1, 8, 4792, 64, 4800),
      a100("mpt-125m", 26, 16, 130535, 32, 127122),
      a100("mpt-125m", 26, 16, 130535, 64, 125234),
      a100("mpt-125m", 26, 16, 130535, 128, 123936),
      a100("mpt-350m", 18, 16, 55413, 32, 53811),
      a100("mpt-350m", 18, 16, 55413, 64, 52689),
      a100("mpt-350m", 18, 16, 55413, 128, 51934),
      a100("mpt-760m", 12, 16, 29607, 32, 29648),
      a100("mpt-760m", 12, 16, 29607, 64, 29344),
      a100("mpt-760m", 12, 16, 29607, 128, 28940),
      a100("mpt-1b", 10, 64, 19001, 128, 18647),
      a100("mpt-3b", 6, 32, 9914, 64, 9736),
      a100("mpt-3b", 6, 32, 9914, 128, 9538),
      a100("mpt-7b", 18, 32, 3725, 64, 3665),
      a100("mpt-7b", 18, 32, 3725, 128, 3623),
      a100("mpt-13b", 16, 64, 1976, 128, 1972),
  };
}

// A decoder of ours with the same matrices, near enough: MPT's two of 4 d are three of 8/3 d. What they differ in is
// speed on one GPU, which is given.
std::vector<std::string> published_model(std::string_view model) {
  struct Shape {
    std::string_view name;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
  };
  static constexpr Shape kShapes[] = {
      {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, true},
      {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, true},
      {"qwen2.5-3b", 36, 2048, 16, 2, 128, 11008, 151936, true},
      {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256, false},
      {"mpt-125m", 12, 768, 12, 12, 64, 2048, 50368, true},
      {"mpt-350m", 24, 1024, 16, 16, 64, 2736, 50368, true},
      {"mpt-760m", 24, 1536, 12, 12, 128, 4096, 50368, true},
      {"mpt-1b", 24, 2048, 16, 16, 128, 5456, 50368, true},
      {"mpt-3b", 32, 2560, 20, 20, 128, 6832, 50368, true},
      {"mpt-7b", 32, 4096, 32, 32, 128, 10928, 50368, true},
      {"mpt-13b", 40, 5120, 40, 40, 128, 13648, 50368, true},
  };
  for (const Shape& s : kShapes)
    if (model == s.name || model.starts_with(std::string(s.name) + " "))
      return {fmt::format("model.layers={}", s.layers),     fmt::format("model.hidden={}", s.hidden),
              fmt::format("model.heads={}", s.heads),       fmt::format("model.kv_heads={}", s.kv_heads),
              fmt::format("model.head_dim={}", s.head_dim), fmt::format("model.ffn={}", s.ffn),
              fmt::format("model.vocab={}", s.vocab),       fmt::format("model.tied={}", s.tied)};
  return {};
}

// A run as it is predicted on many GPUs, its speed on few given: kernels are as fast as they must be there.
class Predicted {
 public:
  explicit Predicted(const PublishedRun& run)
      : run_(run),
        few_(walk_of(run, run.few, run.few_accumulate)),
        many_(walk_of(run, run.many, run.many_accumulate)) {}

  double efficiency(double straggler) const {
    const auto rate = [&](const StepWalk& step, int ranks, int accumulate, double slower) {
      const RankStep t = step.times(slower);
      const double seconds = (t.compute + t.exposed) * (1 + straggler * expected_slowest(ranks));
      return run_.rows * run_.seq_len * accumulate / seconds;
    };
    double low = 0.05, high = 20;
    for (int i = 0; i < 25; ++i) {
      const double middle = std::sqrt(low * high);
      (rate(*few_, run_.few, run_.few_accumulate, middle) > run_.few_rate ? low : high) = middle;
    }
    return rate(*many_, run_.many, run_.many_accumulate, low) / run_.few_rate;
  }
  double error(double straggler) const { return 100 * (efficiency(straggler) - run_.measured()); }  // points
  const PublishedRun& run() const { return run_; }

 private:
  static std::unique_ptr<StepWalk> walk_of(const PublishedRun& run, int ranks, int accumulate) {
    std::vector<std::string> overrides = published_model(run.model);
    EXPECT_FALSE(overrides.empty()) << run.model;
    overrides.push_back(fmt::format("train.batch_size={}", run.rows));
    overrides.push_back(fmt::format("train.seq_len={}", run.seq_len));
    overrides.push_back(fmt::format("train.accumulate={}", accumulate));
    overrides.push_back(fmt::format("parallel.wire={}", run.gradient_bytes == 2 ? "bf16" : "fp32"));
    overrides.emplace_back("optim.name=adamw");
    overrides.emplace_back(in_fp8(run.model) ? "precision.matmul=fp8" : "precision.matmul=bf16");
    const Fabric fabric = fabric_of(card_called(run.card), network_called(run.network), 8, 8);
    return std::make_unique<StepWalk>(config_of("llama-1.36b", overrides), machine_named(run.card),
                                      Spread{run.mode, ranks, fabric});
  }

  PublishedRun run_;
  std::unique_ptr<StepWalk> few_, many_;
};

const std::vector<Predicted>& predictions() {
  static const std::vector<Predicted> kAll = [] {
    std::vector<Predicted> v;
    for (const PublishedRun& run : published_runs()) v.emplace_back(run);
    return v;
  }();
  return kAll;
}

double rms(std::string_view table, double straggler) {
  double sum = 0, n = 0;
  for (const Predicted& p : predictions()) {
    if (table != p.run().table) continue;
    sum += std::pow(p.error(straggler), 2);
    n += 1;
  }
  return std::sqrt(sum / n);
}

// The deviation with the least rms: it has one minimum.
double best_for(std::string_view table) {
  double low = 0, high = 0.2;
  while (high - low > 1e-4) {
    const double a = low + (high - low) / 3, b = high - (high - low) / 3;
    if (rms(table, a) < rms(table, b))
      high = b;
    else
      low = a;
  }
  return (low + high) / 2;
}

TEST(ScaleFit, TheConstantIsThatOfTheRunsItWasFittedOn) {
  EXPECT_NEAR(best_for("fit"), kStraggler, 5e-4);
  EXPECT_LT(rms("fit", kStraggler), 0.6);
}

// Nothing was fitted on these. Without the constant the plan is too optimistic by more.
TEST(ScaleFit, HoldsForRunsThatItWasNotFittedOn) {
  EXPECT_LT(rms("h100", kStraggler), 1.35);
  EXPECT_GT(rms("h100", 0), 2);
  EXPECT_LT(rms("fp8", kStraggler), 0.9);
  EXPECT_GT(rms("fp8", 0), 2);
  // Small models of a few hundred million parameters lost 4 points more than predicted there: docs/ranks.md says so.
  EXPECT_LT(rms("a100", kStraggler), 2.3);
  EXPECT_GT(rms("a100", kStraggler), 1.5) << "better than docs/ranks.md says";
}

// Runs that the constant was fitted on, and those that nothing was, each in a table of its own.
TEST(ScaleFit, TheTablesAreThoseOfTheDocs) {
  const std::string docs = real_files().read(Path(testing::source_folder()) / "docs/ranks.md");
  std::string all =
      "\n\n| rows | points rms | without the straggler term | with the constant that is best for them |\n"
      "|---|---|---|---|\n";
  for (const auto& [name, of] : {std::pair{"LLMQ and torchtitan in bf16, 5: fitted", "fit"},
                                 {"LLMQ and torchtitan in fp8, 4", "fp8"},
                                 {"llm-foundry on H100, 7", "h100"},
                                 {"llm-foundry on A100, 15", "a100"}}) {
    const double best = best_for(of);
    all += fmt::format("| {} | {:.2f} | {:.2f} | {:.2f} ({:.4f}) |\n", name, rms(of, kStraggler), rms(of, 0),
                       rms(of, best), best);
  }
  EXPECT_NE(docs.find(all + "\n"), std::string::npos) << "docs/ranks.md should have\n" << all;
  for (const bool fitted : {true, false}) {
    std::string table = "\n\n| run | GPUs | measured | predicted | difference |\n|---|---|---|---|---|\n";
    for (const Predicted& p : predictions()) {
      const PublishedRun& r = p.run();
      if ((r.table == std::string_view("fit")) != fitted) continue;
      table += fmt::format("| {} {}, {} | {} to {} | {:.1f}% | {:.1f}% | {:+.1f} |\n", r.source, r.model, r.card, r.few,
                           r.many, 100 * r.measured(), 100 * p.efficiency(kStraggler), p.error(kStraggler));
    }
    EXPECT_NE(docs.find(table + "\n"), std::string::npos) << "docs/ranks.md should have\n" << table;
  }
}

}  // namespace
}  // namespace redline::perf
