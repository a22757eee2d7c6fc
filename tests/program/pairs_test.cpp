// Work beside other work: a pair of nodes over the same operands. What it uses stays its own between its two ends, and
// the checker sees it when somebody would meet it there.
#include <gtest/gtest.h>

#include "program/small_program.h"
#include "testing/check_plan.h"

namespace redline::program {
namespace {

constexpr std::int64_t kSize = 96;

// out = (a + b) beside c = a + a, d = c + b; then e = out + d.
struct Sums {
  ProgramSet set;
  Writer w{set};
  ValueId a = value("a", Role::input), b = value("b", Role::input), e = value("e", Role::output);
  ValueId out, c, d;
  std::int32_t pair = -1;

  ValueId value(const char* name, Role role) { return w.declare(name, {kSize}, DType::f32, role); }
  void add(ValueId x, ValueId y, ValueId sum, const char* name) {
    w.append(ops::Add<ValueId>{x, y, sum}, Phase::forward, name);
  }
  void begin() {
    w.begin("step", {});
    out = w.activation("out", {kSize});
    c = w.activation("c", {kSize});
    d = w.activation("d", {kSize});
    pair = w.start(ops::Add<ValueId>{a, b, out}, Phase::forward, "beside");
  }
  void end() {
    w.end();
    plan_memory(set);
  }
  std::vector<std::string> faults() {
    end();
    return check_plan(set);
  }
};

void expect_fault(const std::vector<std::string>& faults, std::string_view what) {
  ASSERT_EQ(faults.size(), 1u) << what;
  EXPECT_NE(faults[0].find(what), std::string::npos) << faults[0];
}

TEST(Pairs, KeepTheirMemoryFromTheStartToTheWait) {
  Sums s;
  s.begin();
  s.add(s.a, s.a, s.c, "c");
  s.add(s.c, s.b, s.d, "d");
  s.w.wait(s.pair);
  s.add(s.out, s.d, s.e, "e");
  EXPECT_EQ(s.faults(), std::vector<std::string>{});
  const auto begin = [&](ValueId id) { return s.set.memory.offsets[static_cast<std::size_t>(id.index)]; };
  for (const ValueId other : {s.c, s.d})
    EXPECT_TRUE(begin(s.out) + kSize * 4 <= begin(other) || begin(other) + kSize * 4 <= begin(s.out));

  device::CpuDevice device(1);
  const auto executor = make_executor(s.set, device);
  for (std::int64_t i = 0; i < kSize; ++i) {
    executor->tensor(s.a).f32()[i] = static_cast<float>(i);
    executor->tensor(s.b).f32()[i] = 1000;
  }
  executor->poison_transients();
  executor->run("step");
  for (std::int64_t i = 0; i < kSize; ++i)
    EXPECT_EQ(executor->tensor(s.e).f32()[i], static_cast<float>(3 * i + 2000)) << i;
}

// Without the wait's operands the planner would hand the memory to the next value after the start.
TEST(Pairs, WithoutTheWaitTheMemoryWouldBeGivenAway) {
  Sums s;
  s.begin();
  s.add(s.a, s.a, s.c, "c");
  s.add(s.c, s.b, s.e, "e");
  s.end();
  const std::vector<std::string> faults = check_plan(s.set);
  expect_fault(faults, "nobody waits for it");
  EXPECT_EQ(s.set.memory.offsets[static_cast<std::size_t>(s.out.index)],
            s.set.memory.offsets[static_cast<std::size_t>(s.c.index)]);
}

TEST(Pairs, TheWaitCostsNothing) {
  Sums s;
  s.begin();
  s.w.wait(s.pair);
  EXPECT_GT(s.w.program().nodes[0].cost.bytes, 0);
  EXPECT_EQ(s.w.program().nodes[1].cost.bytes, 0);
  EXPECT_EQ(s.w.program().nodes[1].name, "beside/wait");
}

TEST(Pairs, AWriteToWhatIsBeingReadIsAFault) {
  Sums s;
  s.begin();
  s.add(s.b, s.b, s.a, "over a");
  s.w.wait(s.pair);
  expect_fault(s.faults(), "over a writes what beside reads meanwhile");
}

TEST(Pairs, ATouchOfWhatIsBeingWrittenIsAFault) {
  Sums reads;
  reads.begin();
  reads.add(reads.out, reads.b, reads.e, "too early");
  reads.w.wait(reads.pair);
  expect_fault(reads.faults(), "too early touches what beside writes meanwhile");

  Sums writes;
  writes.begin();
  writes.add(writes.a, writes.b, writes.out, "over it");
  writes.w.wait(writes.pair);
  expect_fault(writes.faults(), "over it touches what beside writes meanwhile");
}

// A view is its owner's memory.
TEST(Pairs, ViewsCountAsWhatTheyAreViewsOf) {
  Sums s;
  s.begin();
  const ValueId half = s.w.view(s.out, "half", {kSize / 2}, 0);
  const ValueId to = s.w.activation("to", {kSize / 2});
  s.w.append(ops::Add<ValueId>{half, half, to}, Phase::forward, "half of it");
  s.w.wait(s.pair);
  expect_fault(s.faults(), "half of it touches what beside writes meanwhile");
}

TEST(Pairs, AWaitWithoutAStartOrWithOtherOperandsIsAFault) {
  Sums s;
  s.begin();
  s.w.wait(s.pair);
  s.w.wait(s.pair);
  expect_fault(s.faults(), "waits for what was not started");

  Sums other;
  other.begin();
  other.w.wait(other.pair);
  other.w.program().nodes.back().op = ops::Add<ValueId>{other.a, other.a, other.out};
  expect_fault(other.faults(), "does not list the operands of its start");
}

TEST(Pairs, SeveralAreUnderWayAtOnce) {
  Sums s;
  s.begin();
  const std::int32_t second = s.w.start(ops::Add<ValueId>{s.a, s.a, s.c}, Phase::forward, "second");
  EXPECT_NE(second, s.pair);
  s.w.wait(second);
  s.w.wait(s.pair);
  s.add(s.out, s.c, s.e, "e");
  EXPECT_EQ(s.faults(), std::vector<std::string>{});
}

// A program for a card sorts the tokens of two tables once, and every start has its wait.
TEST(Pairs, TheTokensOfTwoTablesAreSortedOnce) {
  SmallProgram p;
  const ValueId first = p.matrix("first", SmallProgram::kVocab), second = p.matrix("second", 2 * SmallProgram::kVocab);
  const ValueId head = p.matrix("head", SmallProgram::kVocab), norm = p.vector("norm");
  p.b.begin("step", {.training = true, .kind = device::Kind::cuda});
  const ValueId x = p.b.embed(p.tokens, first), y = p.b.embed(p.tokens, second);
  p.end(p.b.add_norm(x, y, norm, 1e-5f, "sum").y, head);
  EXPECT_EQ(check_plan(p.set), std::vector<std::string>{});
  int starts = 0, waits = 0;
  for (const Node& node : p.set.programs[0].nodes) {
    starts += node.when == When::start;
    waits += node.when == When::wait;
    const auto* const sort = std::get_if<ops::SortTokens<ValueId>>(&node.op);
    EXPECT_TRUE(!sort || sort->vocab == 2 * SmallProgram::kVocab);
  }
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace redline::program
