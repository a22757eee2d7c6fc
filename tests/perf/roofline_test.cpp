// What is expected of a machine, held against what must be true of any machine, and against what cards did after the
// rates of src/perf/roofline.cpp were set. What breaks a test here:
//  - IsNeverBelowWhatTheMachineCouldDoAtBest: a rate above a machine's own, or a node whose work is left out.
//  - ABetterMachineIsNeverSlower: a share or a fill that depends on a rate the wrong way round; a forgotten bound.
//  - MoreRowsAreNeverFewerTokensASecond: a cost that grows faster than its rows; work of the update counted a row.
//  - RecomputeSavesMemoryAndCostsTime: copies that are planned beside what they replace, or that cost nothing.
//  - AnEngineAllocatesWhatIsPlanned: plan and engine lower differently, or something is allocated beside the arena.
//  - TheArenaIsWhatRunsReported: programs for a card hold other values than those that ran on one (bench/results).
//  - RunsMeasuredAfterTheFit: the roofline is wrong where it was not fitted, or a fit bent it to some models
//    at the cost of others: rows of bench/results with `used_in_fit` false, of other batch sizes and precisions, too.
//  - KnowsEveryOpOfAModel: an op that models use has no rate of its own, but the half of what an unknown op gets.
#include "perf/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "model/engine.h"
#include "model/state_files.h"
#include "perf/machines.h"
#include "perf/plan.h"
#include "perf/walk.h"
#include "program/builder.h"
#include "program/copies.h"
#include "program/program.h"
#include "testing/paths.h"
#include "train/tiny_run.h"

namespace redline::perf {
namespace {

std::vector<Machine> machines() {
  return {machine_named("a100-80"), machine_named("h200"), machine_named("l4"), machine_named("b200"), cpu_machine()};
}

// Every node at the machine's own rates: the longer of all of its products and all of its bytes.
double floor_seconds(const program::ProgramSet& set, std::string_view program, const config::Config& c,
                     const Machine& m) {
  const double t = static_cast<double>(c.train.seq_len);
  const double pairs = static_cast<double>(c.train.batch_size) * t * (t + 1) / 2;
  const double products = 1e12 * (m.kind == device::Kind::cuda ? m.tflops.bf16 : m.tflops.fp32);
  double seconds = 0;
  for (const program::Node& node : set.find(program).nodes)
    seconds += std::max((node.cost.flops + node.cost.flops_per_pair * pairs) / products, node.cost.bytes / m.copy_rate);
  return seconds;
}

TEST(Roofline, IsNeverBelowWhatTheMachineCouldDoAtBest) {
  for (const device::Kind kind : {device::Kind::cpu, device::Kind::cuda}) {
    for (const Efficiency& e : efficiencies(kind)) {
      EXPECT_LE(e.products, 1) << e.op;
      EXPECT_LE(e.moving, 1) << e.op;
    }
  }
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    for (const Machine& m : machines()) {
      const config::Config c = config_of(file.name, {"train.accumulate=1"});
      const model::LoweredModel lowered = model::lower(c.model, model::lowering_options(c, m.kind));
      const double floor =
          floor_seconds(lowered.set, model::kFirst, c, m) + floor_seconds(lowered.set, model::kUpdate, c, m);
      const Expected e = make_plan(c, m).expected;
      EXPECT_GE(e.step_seconds, floor) << file.name << " on " << m.name;
      EXPECT_LT(e.step_seconds, 5 * floor) << file.name << " on " << m.name << ": no op is that far from its machine";
      EXPECT_LT(e.mfu, 1) << file.name << " on " << m.name;
    }
  }
}

TEST(Roofline, ABetterMachineIsNeverSlower) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    for (const Machine& m : machines()) {
      const config::Config c = config_of(file.name);
      Machine bandwidth = m, products = m;
      bandwidth.copy_rate *= 2;
      products.tflops.bf16 *= 2;
      products.tflops.fp32 *= 2;
      const double before = make_plan(c, m).expected.step_seconds;
      for (const Machine* better : {&bandwidth, &products}) {
        const double now = make_plan(c, *better).expected.step_seconds;
        EXPECT_LT(now, before) << file.name << " on " << m.name << ": each has nodes bound by the one and by the other";
        EXPECT_GE(now, before / 2) << file.name << " on " << m.name << ": only one of the two is twice as fast";
      }
    }
  }
}

TEST(Roofline, MoreRowsAreNeverFewerTokensASecond) {
  for (const char* preset : {"ping-95m", "gqa-180m", "llama-1.36b", "qwen3-1.8b"}) {
    for (const Machine& m : {machine_named("h200"), cpu_machine()}) {
      double before = 0;
      for (const int rows : {1, 2, 3, 5, 8, 16, 23, 32, 64}) {
        const Plan p = make_plan(config_of(preset, {fmt::format("train.batch_size={}", rows), "train.accumulate=1",
                                                    "train.recompute=block"}),
                                 m);
        if (!p.fits) break;
        EXPECT_GE(p.expected.tokens_per_s, before) << preset << ", " << rows << " rows on " << m.name;
        before = p.expected.tokens_per_s;
      }
      EXPECT_GT(before, 0) << preset << " on " << m.name;
    }
  }
}

TEST(Roofline, RecomputeSavesMemoryAndCostsTime) {
  for (const config::EmbeddedFile& file : config::embedded_configs()) {
    for (const Machine& m : {machine_named("h200"), cpu_machine()}) {
      std::vector<Plan> plans;
      for (const char* recompute : {"none", "mlp", "block"})
        plans.push_back(make_plan(config_of(file.name, {fmt::format("train.recompute={}", recompute)}), m));
      for (std::size_t i = 1; i < plans.size(); ++i) {
        const std::string what = fmt::format("{}, {} on {}", file.name, plans[i].setting.recompute, m.name);
        EXPECT_LT(plans[i].memory.arena, plans[i - 1].memory.arena) << what;
        EXPECT_GT(plans[i].expected.step_seconds, plans[i - 1].expected.step_seconds) << what;
        EXPECT_EQ(plans[i].flops.total(), plans[0].flops.total()) << what << ": the model's work is the same";
      }
    }
  }
}

// Copies between memories take the link's time, and only what is not hidden by the nodes beside them counts.
TEST(Roofline, CopiesCountWhereTheyDoNotHide) {
  const program::Streamed s(1 << 24);
  Machine m = machine_named("h200");
  const auto seconds = [&] { return expected_seconds(s.set, "step", 1, 1, m); };
  const double link = 4.0 * static_cast<double>(s.size) / m.host_rate;
  EXPECT_NEAR(link, 1.22e-3, 1e-5) << "64 MiB at 55 GB/s";
  const double slow = seconds();  // two copies, and the one sum that stands between them
  EXPECT_GT(slow, 2 * link);
  EXPECT_LT(slow, 2.1 * link);
  m.host_rate *= 1e6;  // all of it hides
  double computing = 0;
  for (const program::Node& node : s.set.programs[0].nodes)
    if (node.when == program::When::now) computing += node.cost.bytes / (0.95 * m.copy_rate) + 1.2e-6;
  EXPECT_NEAR(seconds(), computing, 1e-3 * computing);
}

// Copies both ways at once: each goes at a share of its rate, and what computes meanwhile takes longer.
TEST(Roofline, CopiesBothWaysSlowEachOther) {
  program::ProgramSet set;
  program::Writer w(set);
  const auto host = [&](const char* name) {
    return w.declare(name, {1 << 10}, DType::f32, program::Role::moment, program::Memory::host);
  };
  const program::ValueId from = host("from"), to = host("to");
  w.begin("step", {});
  const program::ValueId a = w.activation("a", {1 << 10}), b = w.activation("b", {1 << 10});
  const auto start = [&](program::ValueId x, program::ValueId y) {
    return w.start(ops::Copy<program::ValueId>{x, y}, program::Phase::update, "copy");
  };
  const std::int32_t in = start(from, a), out = start(b, to);
  w.append(ops::Add<program::ValueId>{b, b, b}, program::Phase::update, "sum");
  w.wait(in);
  w.wait(out);
  w.end();
  const auto end = [&](std::vector<double> seconds, const BothWays& both) {
    return walk(set.programs[0], seconds, both).end;
  };
  constexpr BothWays kHalf = {.share = 0.5, .slows = 0.1};
  EXPECT_NEAR(end({3, 3, 1, 0, 0}, {}), 3, 1e-9) << "in and out, beside the sum";
  EXPECT_NEAR(end({3, 3, 1, 0, 0}, kHalf), 6, 1e-9) << "each at half its rate";
  EXPECT_NEAR(end({1, 3, 1, 0, 0}, kHalf), 4, 1e-9) << "one has left after 2 s, and the other has 2 of its 3 s to go";
  EXPECT_NEAR(end({0, 3, 1, 0, 0}, kHalf), 3, 1e-9) << "one way alone";
  EXPECT_NEAR(end({1, 1, 10, 0, 0}, kHalf), 10 + 0.1 * 2, 1e-9) << "the sum, 2 s of it beside both";
  const Timeline line = walk(set.programs[0], std::vector<double>{1, 3, 1, 0, 0}, kHalf);
  ASSERT_GE(line.spans.size(), 3u);
  EXPECT_NEAR(line.spans[0].end, 2, 1e-9);
  EXPECT_NEAR(line.spans[1].end, 4, 1e-9);
}

TEST(Plan, AnEngineAllocatesWhatIsPlanned) {
  const std::vector<std::vector<std::string>> ways = {{},
                                                      {"train.recompute=mlp"},
                                                      {"train.recompute=block", "train.accumulate=1"},
                                                      {"train.sample_every=5", "model.kv_heads=1"},
                                                      {"model.family=qwen3", "model.qk_norm=true", "model.tied=false"}};
  for (const auto& overrides : ways) {
    const config::Config c = testing::tiny_run(overrides);
    device::CpuDevice device(1);
    model::Engine engine(c.model, model::lowering_options(c, device.kind()), device);
    const Plan p = make_plan(c, cpu_machine());
    EXPECT_EQ(p.memory.arena, engine.executor().arena_bytes()) << fmt::format("{}", fmt::join(overrides, " "));
    const std::int64_t results = engine.programs().memory.host.total;
    EXPECT_EQ(p.memory.host_arena, 0);
    EXPECT_EQ(p.memory.total() + results, device.allocated_bytes()) << fmt::format("{}", fmt::join(overrides, " "));
    for (const auto memory : {program::Memory::device, program::Memory::host}) {  // with the copy for saves
      model::LoweredModel lowered = model::lower(c.model, model::lowering_options(c, device.kind()));
      model::add_snapshot(lowered, memory);
      device::CpuDevice own(1);
      model::Engine saving(c.model, model::lowering_options(c, own.kind()), std::move(lowered), own);
      EXPECT_EQ(p.memory.arena, saving.executor().arena_bytes());
      EXPECT_EQ(p.memory.total() + results + p.snapshot, own.allocated_bytes());
    }
  }
}

// A run of full rows out of bench/results: how it was set up and what a card did.
struct MeasuredRun {
  std::string file, name;
  bool used_in_fit = false;
  Machine machine;
  Plan plan;                                // made now
  double tokens_per_s = 0, memory_gib = 0;  // 0: not measured
  double mfu() const { return tokens_per_s * plan.flops.total() / machine.peak_flops; }
};

std::vector<MeasuredRun> measured_runs() {
  std::vector<MeasuredRun> runs;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(testing::source_folder() + "/bench/results"))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  for (const auto& path : files) {
    std::ifstream stream(path);
    const auto file = nlohmann::json::parse(stream);
    if (!file.contains("used_in_fit") || file.at("card").is_null())
      continue;  // no training runs, or not of a known card
    for (const auto& row : file.at("rows")) {
      if (row.at("rows") != "full") continue;
      const std::string model = row.at("model"), recompute = row.value("recompute", "none");
      const std::int64_t batch_size = row.at("batch_size"), accumulate = row.value("accumulate", 1);
      const std::string precision = row.value("precision", "bf16");
      std::vector<std::string> keys = row.value("keys", std::vector<std::string>());  // beside its preset's
      for (std::string key :
           {fmt::format("train.batch_size={}", batch_size), fmt::format("train.accumulate={}", accumulate),
            fmt::format("train.seq_len={}", row.at("seq_len").get<int>()), std::string("model.dropout=0"),
            std::string("optim.name=adamw"), fmt::format("precision.matmul={}", precision),
            fmt::format("train.recompute={}", recompute)})
        keys.push_back(std::move(key));
      const config::Config c = config_of(model, keys);
      MeasuredRun run;
      run.file = path.filename().string();
      run.name =
          fmt::format("{}: {} {}x{}, recompute {}, {}", run.file, model, batch_size, accumulate, recompute, precision);
      run.used_in_fit = file.at("used_in_fit");
      run.machine = machine_named(file.at("card").get<std::string>());
      run.plan = make_plan(c, run.machine);
      run.memory_gib = row.value("memory_gib", 0.0);
      run.tokens_per_s = row.contains("step_ms")
                             ? static_cast<double>(run.plan.tokens_per_step) / (1e-3 * row.at("step_ms").get<double>())
                             : 1e3 * row.at("ktokens_per_s").get<double>();
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

// Some rows were measured with half the rows of logits at a time: up to 1.1% less.
TEST(Plan, TheArenaIsWhatRunsReported) {
  std::size_t compared = 0;
  for (const MeasuredRun& run : measured_runs()) {
    if (run.memory_gib == 0) continue;
    EXPECT_NEAR(gib(run.plan.memory.arena) / run.memory_gib, 1, 0.02) << run.name;
    ++compared;
  }
  EXPECT_GE(compared, 5u);
}

// Within a quarter is what "auto" counts on: it does not try what is expected to reach less than 0.8 of the best.
TEST(Roofline, RunsMeasuredAfterTheFitComeOutNearTheirPlans) {
  std::size_t compared = 0;
  for (const MeasuredRun& run : measured_runs()) {
    if (run.used_in_fit) continue;
    const double ratio = run.plan.expected.tokens_per_s / run.tokens_per_s;
    EXPECT_GT(ratio, 0.8) << run.name;
    EXPECT_LT(ratio, 1.25) << run.name;
    ++compared;
  }
  EXPECT_GE(compared, 5u);
}

// One card, one call: runs that lie further apart than cards do (3%) are expected in the order they came in.
TEST(Roofline, RunsMeasuredAfterTheFitComeInTheOrderExpected) {
  const std::vector<MeasuredRun> runs = measured_runs();
  std::size_t compared = 0;
  for (const MeasuredRun& slow : runs) {
    for (const MeasuredRun& fast : runs) {
      if (slow.used_in_fit || slow.file != fast.file || fast.mfu() < 1.03 * slow.mfu()) continue;
      EXPECT_GT(fast.plan.expected.mfu, slow.plan.expected.mfu) << fast.name << " after " << slow.name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 5u);
}

TEST(Roofline, KnowsEveryOpOfAModelOnEveryKindOfDevice) {
  for (const char* way : {"optim.name=adamw", "optim.name=muon", "precision.matmul=fp8"}) {
    const config::Config c = config_of(
        "qwen3-1.8b", {"model.dropout=0.1", "train.batch_size=1", "train.recompute=block", "train.average=ema", way});
    for (const Machine& m : machines()) {
      const model::LoweredModel lowered = model::lower(c.model, model::lowering_options(c, m.kind));
      for (const program::Program& p : lowered.set.programs)
        for (const program::Node& node : p.nodes) {
          const std::string_view op = program::name_of(node.op);
          EXPECT_EQ(efficiency(m.kind, op).op, op) << "has no row of its own";
        }
    }
  }
}

// An op can be added without a row here: it is expected to reach half of what the machine can do.
TEST(Roofline, AnOpWithoutARowReachesHalfOfWhatTheMachineCanDo) {
  program::ProgramSet set;
  program::Builder b(set);
  const auto kind = std::make_shared<ops::CustomKind>(ops::CustomKind{{{"x", Access::read}, {"y", Access::write}}, {}});
  for (const Machine& m : machines()) {
    EXPECT_EQ(efficiency(m.kind, "custom").products, 0.5);
    ASSERT_NE(efficiency(m.kind, "custom").op, "custom") << "take an op that has no row";
    const std::string name(m.name);
    b.begin(name, {});
    b.custom({kind, {b.declare("x", {4096, 1024}, DType::f32, program::Role::input), b.scratch("y", {4096, 1024})}},
             "op");
    b.end();
    const double moving = set.find(name).nodes[0].cost.bytes / (0.5 * m.copy_rate);
    ASSERT_GT(moving, 0);
    EXPECT_NEAR(expected_seconds(set, name, 4, 1024, m) - seconds_between_nodes(m.kind), moving, 1e-9 * moving) << name;
  }
}

}  // namespace
}  // namespace redline::perf
