// Programs on a card: a run changes state once, whether it is launched node by node, captured or replayed; a replay reads
// what the host has written since; the plan is what is allocated; a timer hears every node.
#include "program/executor.h"

#include <vector>

#include "program/planner.h"
#include "testing/on_card.h"

namespace redline::program {
namespace {

constexpr std::int64_t kRows = 40, kIn = 24, kOut = 56;

// Two nodes: y = x W^T and sum += y^T x. Small whole numbers, so that every result is exact.
struct Sums {
  ProgramSet set;
  ValueId x, weight, y, sum;

  Sums() {
    const auto declare = [&](const char* name, Shape shape, Role role) {
      set.values.push_back({.name = name, .shape = shape, .dtype = DType::f32, .role = role, .alias_of = {}});
      return ValueId{static_cast<std::int32_t>(set.values.size()) - 1};
    };
    x = declare("x", {kRows, kIn}, Role::input);
    weight = declare("weight", {kOut, kIn}, Role::constant);
    y = declare("y", {kRows, kOut}, Role::activation);
    sum = declare("sum", {kOut, kIn}, Role::gradient);
    set.constants.push_back({weight, weights()});
    set.programs.push_back({"step",
                            {{ops::Linear<ValueId>{x, weight, y}, Phase::forward, {}, "linear"},
                             {ops::LinearWeightGrad<ValueId>{x, y, sum, true}, Phase::backward, {}, "sum"}}});
    plan_memory(set);
  }

  static std::vector<float> weights() {
    std::vector<float> w(static_cast<std::size_t>(kOut * kIn));
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 5) - 2;
    return w;
  }
  static std::vector<float> inputs(int run) {
    std::vector<float> v(static_cast<std::size_t>(kRows * kIn));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>((i + static_cast<std::size_t>(run)) % 3) - 1;
    return v;
  }
};

std::vector<float> sums_after(int runs, device::Device& device, const ExecutorOptions& options) {
  const Sums sums;
  const auto executor = make_executor(sums.set, device, options);
  std::vector<float> out(static_cast<std::size_t>(kOut * kIn));
  for (int run = 0; run < runs; ++run) {
    const std::vector<float> x = Sums::inputs(run);
    executor->write(sums.x, x.data(), static_cast<std::int64_t>(x.size() * sizeof(float)));
    executor->run("step");
  }
  executor->read(sums.sum, out.data(), static_cast<std::int64_t>(out.size() * sizeof(float)));
  return out;
}

using CudaExecutor = testing::OnCard<>;

TEST_F(CudaExecutor, EveryRunChangesStateOnceAndReadsWhatWasWritten) {
  device::CpuDevice cpu(1);
  for (const int runs : {0, 1, 2, 3, 10}) {
    const std::vector<float> expected = sums_after(runs, cpu, {});
    for (const bool graphs : {false, true})
      EXPECT_EQ(sums_after(runs, card(), {.graphs = graphs}), expected) << runs << " runs, graphs " << graphs;
  }
}

TEST_F(CudaExecutor, ThePlanIsWhatIsAllocated) {
  const Sums sums;
  {
    const auto executor = make_executor(sums.set, card());
    EXPECT_EQ(card().allocated_bytes(), sums.set.memory.total);
    EXPECT_EQ(executor->arena_bytes(), sums.set.memory.total);
    executor->run("step");
    executor->run("step");
    EXPECT_EQ(card().allocated_bytes(), sums.set.memory.total);
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
  std::vector<float> out(static_cast<std::size_t>(kOut * kIn), 1.0f);
  const auto bytes = static_cast<std::int64_t>(out.size() * sizeof(float));
  const std::vector<float> zeros(out.size());
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_EQ(out, zeros);
  const std::vector<float> ones(static_cast<std::size_t>(kRows * kIn), 1.0f);
  executor->write(sums.x, ones.data(), static_cast<std::int64_t>(ones.size() * sizeof(float)));
  executor->run("step");
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_NE(out, zeros);
  executor->clear(sums.sum);
  executor->read(sums.sum, out.data(), bytes);
  EXPECT_EQ(out, zeros);
}

}  // namespace
}  // namespace redline::program
