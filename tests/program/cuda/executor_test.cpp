// Programs on a card: a run changes state once, whether it is launched node by node, captured or replayed; a replay
// reads what the host has written since; a capture that fails costs the graphs alone; what was tuned is kept; the plan
// is what is allocated; a timer hears every node.
#include "program/executor.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "program/builder.h"
#include "program/copies.h"
#include "program/planner.h"
#include "testing/check_plan.h"
#include "testing/on_card.h"
#include "testing/temp_folder.h"

namespace redline::program {
namespace {

// The tuning cache of this process, set before the first product reads it.
const testing::TempFolder kCache;
[[maybe_unused]] const int kCacheIsSet = ::setenv("XDG_CACHE_HOME", kCache.path().c_str(), 1);

struct Extents {
  std::int64_t rows = 40, in = 24, out = 56;
};

// Two nodes: y = x W^T and sum += y^T x. Small whole numbers, so that every result is exact.
struct Sums {
  Extents extents;
  ProgramSet set;
  ValueId x, weight, y, sum;

  explicit Sums(Extents e = {}) : extents(e) {
    const auto declare = [&](const char* name, Shape shape, Role role) {
      set.values.push_back({.name = name, .shape = shape, .dtype = DType::f32, .role = role, .alias_of = {}});
      return ValueId{static_cast<std::int32_t>(set.values.size()) - 1};
    };
    x = declare("x", {e.rows, e.in}, Role::input);
    weight = declare("weight", {e.out, e.in}, Role::constant);
    y = declare("y", {e.rows, e.out}, Role::activation);
    sum = declare("sum", {e.out, e.in}, Role::gradient);
    set.constants.push_back({weight, [this] { return weights(); }});
    set.programs.push_back({"step",
                            {{ops::Linear<ValueId>{x, weight, y}, Phase::forward, {}, "linear"},
                             {ops::LinearWeightGrad<ValueId>{x, y, sum, true}, Phase::backward, {}, "sum"}}});
    plan_memory(set);
  }

  std::vector<float> weights() const {
    std::vector<float> w(static_cast<std::size_t>(extents.out * extents.in));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 5) - 2;
    return w;
  }
  std::vector<float> inputs(int run) const {
    std::vector<float> v(static_cast<std::size_t>(extents.rows * extents.in));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>((i + static_cast<std::size_t>(run)) % 3) - 1;
    return v;
  }
};

std::vector<float> sums_after(int runs, device::Device& device, const ExecutorOptions& options, Extents extents = {},
                              std::string_view tuned_in_run = "") {
  const Sums sums(extents);
  const auto executor = make_executor(sums.set, device, options);
  if (!tuned_in_run.empty()) tune_products(device, tuned_in_run);
  std::vector<float> out(sums.weights().size());
  for (int run = 0; run < runs; ++run) {
    const std::vector<float> x = sums.inputs(run);
    executor->write(sums.x, x.data(), static_cast<std::int64_t>(x.size() * sizeof(float)));
    executor->run("step");
  }
  executor->read(sums.sum, out.data(), static_cast<std::int64_t>(out.size() * sizeof(float)));
  return out;
}

using CudaExecutor = testing::OnCard<>;
using AloneOnCard = testing::OnCard<>;  // with no other test beside it: cmake/Tests.cmake

TEST_F(CudaExecutor, EveryRunChangesStateOnceAndReadsWhatWasWritten) {
  device::CpuDevice cpu(1);
  for (const int runs : {0, 1, 2, 3, 10}) {
    const std::vector<float> expected = sums_after(runs, cpu, {});
    for (const bool graphs : {false, true})
      EXPECT_EQ(sums_after(runs, card(), {.graphs = graphs}), expected) << runs << " runs, graphs " << graphs;
  }
}

// Tuning overwrites the arena before the first contents of values are there.
TEST_F(AloneOnCard, ProductsAreTunedInTheArena) {
  constexpr Extents kLarge{.rows = 16384, .in = 4096, .out = 4096};  // arena: 640 MiB, of which products take 576
  device::CpuDevice cpu(1);
  std::vector<std::string> notes, warnings;
  const log::Listener listener(
      [&](bool warning, std::string_view text) { (warning ? warnings : notes).emplace_back(text); });
  {
    const auto warm = sums_after(1, card(), {}, {.rows = 1000, .in = 832, .out = 840});  // loads the library
    const std::int64_t arena = Sums(kLarge).set.memory.device.allocated();
    std::size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    const auto all_else = card().allocate(static_cast<std::int64_t>(free) - arena - (std::int64_t{400} << 20));
    notes.clear();
    const Sums sums(kLarge);
    const auto executor = make_executor(sums.set, card());
    ASSERT_EQ(notes.size(), 1u) << "before anything runs";
    EXPECT_TRUE(notes[0].starts_with("tuned 2 products")) << notes[0];
    std::vector<float> sum(sums.weights().size(), 1.0f), weight(sum.size());
    executor->read(sums.sum, sum);
    executor->read(sums.weight, weight);
    EXPECT_EQ(sum, std::vector<float>(sum.size(), 0.0f));
    EXPECT_EQ(weight, sums.weights());
  }
  EXPECT_EQ(warnings, std::vector<std::string>{}) << "there was no room for operands beside the arena";
  constexpr Extents kSmall{.rows = 1000, .in = 848, .out = 856};
  EXPECT_EQ(sums_after(3, card(), {}, kSmall), sums_after(3, cpu, {}, kSmall));
}

// The line that tells of tuning in a run comes between a program's first run and its capture: a capture that somebody
// else began there lets the program's own fail.
TEST_F(CudaExecutor, ACaptureThatFailsIsToldOnceAndTheRunGoesOn) {
  constexpr Extents kTuned{.rows = 1000, .in = 800, .out = 800};
  device::CpuDevice cpu(1);
  const cudaStream_t stream = card().launch().stream;
  std::vector<std::string> warnings;
  bool in_the_way = false;
  const auto listen = [&](bool warning, std::string_view text) {
    if (!warning && text.starts_with("tuned ")) {
      in_the_way = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    } else if (warning) {
      warnings.emplace_back(text);
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(stream, &graph);
      const device::cuda::Graph unused(graph);
      cudaGetLastError();
    }
  };
  std::vector<float> sums;
  {
    const log::Listener listener(listen);
    tune_products(card(), "off");
    sums = sums_after(4, card(), {}, kTuned, "on");
  }
  EXPECT_TRUE(in_the_way);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(
      warnings[0].starts_with("programs run node by node from here on, without CUDA graphs: capturing \"step\" failed"))
      << warnings[0];
  EXPECT_EQ(sums, sums_after(4, cpu, {}, kTuned));
}

TEST_F(CudaExecutor, WhatWasTunedIsKeptWithGraphsAndWithout) {
  for (const bool graphs : {false, true}) {
    const Extents extents{.rows = 1000, .in = 808, .out = graphs ? 824 : 816};
    sums_after(1, card(), {.graphs = graphs}, extents);
    const std::string text = real_files().read(kCache / "redline/tuning.json");
    EXPECT_NE(text.find(fmt::format("{}x{}x{} NT f32>f32", extents.rows, extents.out, extents.in)), std::string::npos)
        << "graphs " << graphs;
  }
}

// Sums of large arrays beside each other on two streams, in graphs and without: each run reads what the one before
// wrote, so an edge that is missing shows.
TEST_F(CudaExecutor, APairRunsBesideTheNodesBetweenItsEnds) {
  constexpr std::int64_t kSize = 1 << 22;
  constexpr int kRuns = 20;
  ProgramSet set;
  Writer w(set);
  const auto value = [&](const char* name, Role role) { return w.declare(name, {kSize}, DType::f32, role); };
  const auto add = [&](ValueId x, ValueId y, ValueId sum, const char* name) {
    w.append(ops::Add<ValueId>{x, y, sum}, Phase::forward, name);
  };
  const ValueId a = value("a", Role::gradient), one = value("one", Role::input);
  w.begin("step", {});
  const ValueId side = w.activation("side", {kSize}), c = w.activation("c", {kSize}), d = w.activation("d", {kSize});
  add(a, one, c, "c");                                                                           // a + 1
  const std::int32_t pair = w.start(ops::Add<ValueId>{c, one, side}, Phase::forward, "beside");  // a + 2
  add(c, c, d, "d");                                                                             // 2 a + 2
  add(d, one, d, "d again");                                                                     // 2 a + 3
  w.wait(pair);
  add(side, one, a, "a");  // a + 3
  add(d, one, d, "d last");
  w.end();
  plan_memory(set);
  ASSERT_EQ(check_plan(set), std::vector<std::string>{});
  const std::vector<float> ones(kSize, 1.0f);
  for (const bool graphs : {false, true}) {
    const auto executor = make_executor(set, card(), {.graphs = graphs});
    executor->write(one, ones.data(), kSize * 4);
    executor->clear(a);
    for (int run = 0; run < kRuns; ++run) {
      executor->poison_transients();
      executor->run("step");
    }
    std::vector<float> out(kSize);
    executor->read(a, out.data(), kSize * 4);
    EXPECT_EQ(std::ranges::count(out, 3.0f * kRuns), kSize) << "graphs " << graphs;
  }
}

// Each run reads the state that the one before sent back, so a copy that is not waited for shows.
TEST_F(CudaExecutor, StateOnTheHostIsUpdatedThroughTheCard) {
  constexpr std::int64_t kSize = 1 << 22;
  const Streamed streamed(kSize);
  ASSERT_EQ(check_plan(streamed.set), std::vector<std::string>{});
  for (const bool graphs : {false, true})
    EXPECT_EQ(std::ranges::count(streamed.after(20, card(), {.graphs = graphs}), 20.0f), kSize) << "graphs " << graphs;
}

TEST_F(CudaExecutor, ThePlanIsWhatIsAllocated) {
  const Sums sums;
  {
    const auto executor = make_executor(sums.set, card());
    EXPECT_EQ(card().allocated_bytes(), sums.set.memory.device.total);
    EXPECT_EQ(executor->arena_bytes(), sums.set.memory.device.total);
    executor->run("step");
    executor->run("step");
    EXPECT_EQ(card().allocated_bytes(), sums.set.memory.device.total);
  }
  EXPECT_EQ(card().allocated_bytes(), 0);
}

TEST_F(CudaExecutor, ATimerHearsEveryNodeInOrderBeforeAndAfterCapture) {
  struct Heard final : NodeTimer {
    void node(const Node& node, double begin, double end) override {
      names.push_back(node.name);
      EXPECT_LE(last, begin);
      EXPECT_LE(begin, end);
      last = end;
    }
    std::vector<std::string> names;
    double last = 0;
  } heard;
  const Sums sums;
  const auto executor = make_executor(sums.set, card());
  executor->run("step", &heard);
  executor->run("step");
  executor->run("step", &heard);
  EXPECT_EQ(heard.names, (std::vector<std::string>{"linear", "sum", "linear", "sum"}));
}

TEST_F(CudaExecutor, PersistentMemoryStartsAtZeroAndIsClearedWhenAsked) {
  const Sums sums;
  const auto executor = make_executor(sums.set, card());
  std::vector<float> out(sums.weights().size(), 1.0f);
  const auto bytes = static_cast<std::int64_t>(out.size() * sizeof(float));
  const std::vector<float> zeros(out.size());
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_EQ(out, zeros);
  const std::vector<float> ones(sums.inputs(0).size(), 1.0f);
  executor->write(sums.x, ones.data(), static_cast<std::int64_t>(ones.size() * sizeof(float)));
  executor->run("step");
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_NE(out, zeros);
  executor->clear(sums.sum);
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_EQ(out, zeros);
}

TEST_F(CudaExecutor, AWatchedRunHasEveryNodeAndTheBitsOfAnyOther) {
  const Sums sums;
  const auto executor = make_executor(sums.set, card());
  std::vector<std::string> names;
  for (int run = 0; run < 4; ++run) {
    const std::vector<float> x = sums.inputs(run);
    executor->write(sums.x, x.data(), static_cast<std::int64_t>(x.size() * sizeof(float)));
    if (run % 2 == 0)
      executor->run_watched("step", [&](const Node& node) { names.push_back(node.name); });
    else
      executor->run("step");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"linear", "sum", "linear", "sum"}));
  std::vector<float> out(sums.weights().size());
  executor->read(sums.sum, out.data(), static_cast<std::int64_t>(out.size() * sizeof(float)));
  EXPECT_EQ(out, sums_after(4, card(), {}));
}

// Neither waits for the other on the host: the change waits on the card.
TEST_F(CudaExecutor, ACopyThatIsUnderWayFromProgramToProgramIsOfTheMoment) {
  for (const Memory memory : {Memory::host, Memory::device})
    for (const bool graphs : {true, false})
      EXPECT_EQ(Kept(memory).rounds(3, card(), {.graphs = graphs}), (std::vector<float>{0, 2, 2, 4, 4, 6}));
}

// Counts wait for nobody: each is of what its value held when it was asked for.
TEST_F(CudaExecutor, CountsInEightBitsAreOfTheMoment) {
  ProgramSet set;
  const auto declare = [&](const char* name, Shape shape, DType dtype) {
    set.values.push_back({.name = name, .shape = shape, .dtype = dtype, .role = Role::input, .alias_of = {}});
    return ValueId{static_cast<std::int32_t>(set.values.size()) - 1};
  };
  const ValueId x = declare("x", {16, 32}, DType::bf16), scale = declare("scale", {ops::kScaleFloats}, DType::f32);
  const ValueId copy = declare("copy", {16, 32}, DType::e4m3), other = declare("other", {16, 32}, DType::e4m3);
  const ValueId counted = declare("counts", {2 * sizeof(ops::Fp8Count)}, DType::u8);
  set.programs.push_back({"cast", {{ops::Quantize<ValueId>{x, {copy, {}, scale, {}}}, Phase::forward, {}, "cast"}}});
  set.programs.push_back({"again", {{ops::Quantize<ValueId>{x, {other, {}, scale, {}}}, Phase::forward, {}, "cast"}}});
  plan_memory(set);
  const auto executor = make_executor(set, card());
  const std::vector<std::uint16_t> large(16 * 32, 0x4500), none(16 * 32, 0);  // 2048, which is beyond 448
  const ops::Fp8Scale one{1, 1, 0, 0, {}};
  executor->write(scale, &one, sizeof one);
  for (int round = 0; round < 2; ++round) {
    executor->write(x, large.data(), 2 * 16 * 32);
    executor->run("cast");
    executor->clear(counted);
    executor->count(copy, counted, 0);
    executor->write(x, none.data(), 2 * 16 * 32);
    executor->run("again");
    executor->count(other, counted, 1);
    std::vector<ops::Fp8Count> counts(2);
    executor->read(counted, counts);
    EXPECT_EQ(counts[0].saturated, 512u);
    EXPECT_EQ(counts[0].zeros, 0u);
    EXPECT_EQ(counts[1].zeros, 512u);
    EXPECT_EQ(counts[1].saturated + counts[1].not_finite + counts[1].largest, 0u);
  }
  EXPECT_THROW(executor->count(copy, counted, 2), MachineError);
}

}  // namespace
}  // namespace redline::program
