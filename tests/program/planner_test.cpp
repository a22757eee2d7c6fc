// What the planner promises: every value has its own bytes while it lives, bytes are shared when lives do not meet, the
// plan is what is allocated, and the checker sees it when any of this is broken.
#include "program/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "device/device.h"
#include "program/builder.h"
#include "program/executor.h"
#include "testing/check_plan.h"

namespace redline::program {
namespace {

constexpr std::int64_t kTokens = 24, kHidden = 8, kVocab = 11;

// An embedding, a chain of residual linears, and the loss: small, but with every kind of lifetime in it.
struct Chain {
  ProgramSet set;
  ValueId tokens, targets, weights, gradients, losses, loss_sum;

  explicit Chain(int layers, bool training = true) {
    Builder b(set);
    std::int64_t total = kVocab * kHidden + layers * (kHidden * kHidden + kHidden) + kHidden;
    weights = b.declare("weights", {total}, DType::f32, Role::parameter);
    gradients = b.declare("gradients", {total}, DType::f32, Role::gradient);
    tokens = b.declare("tokens", {kTokens}, DType::i32, Role::input);
    targets = b.declare("targets", {kTokens}, DType::i32, Role::input);
    losses = b.declare("losses", {kTokens}, DType::f32, Role::output);
    loss_sum = b.declare("loss sum", {1}, DType::f64, Role::output);
    std::int64_t at = 0;
    const auto parameter = [&](const char* name, Shape shape) {
      const ValueId w = b.view(weights, name, shape, at * 4), g = b.view(gradients, name, shape, at * 4);
      b.pair_gradient(w, g);
      at += shape.elements();
      return w;
    };
    const ValueId embedding = parameter("embedding", {kVocab, kHidden});
    std::vector<std::pair<ValueId, ValueId>> chain;
    for (int i = 0; i < layers; ++i) {
      const ValueId norm = parameter("norm", {kHidden});
      chain.push_back({norm, parameter("linear", {kHidden, kHidden})});
    }
    const ValueId last = parameter("last norm", {kHidden});
    b.begin("step", {.training = training, .loss_chunk = 7});
    ValueId residual = b.embed(tokens, embedding), branch = kAbsent;
    for (const auto& [norm, linear] : chain) {
      auto [r, y] = b.add_norm(residual, branch, norm, 1e-5f, "norm");
      residual = r;
      branch = b.linear(y, linear, "linear");
    }
    b.lm_loss(b.add_norm(residual, branch, last, 1e-5f, "last norm").y, embedding, targets, {losses, loss_sum});
    if (training) b.backward();
    b.end();
    plan_memory(set);
  }
};

std::int64_t sum_of_transients(const ProgramSet& set) {
  std::int64_t sum = 0;
  for (const Value& v : set.values)
    if (!persistent(v.role) && !v.alias_of.present()) sum += v.bytes();
  return sum;
}

TEST(Planner, APlanHasNoFault) {
  for (int layers : {1, 2, 5}) EXPECT_EQ(check_plan(Chain(layers).set), std::vector<std::string>{});
  EXPECT_EQ(check_plan(Chain(3, false).set), std::vector<std::string>{});
}

TEST(Planner, ValuesThatDoNotMeetShareMemory) {
  const Chain forward_only(8, false);
  const std::int64_t overlay = forward_only.set.memory.device.transient_by_program[0];
  EXPECT_LT(overlay, sum_of_transients(forward_only.set) / 3);  // eight layers live in the room of about two
  const Chain training(8);
  EXPECT_LT(training.set.memory.device.transient_by_program[0], sum_of_transients(training.set));
}

// Random lives, from two nodes to all of a program: each value, the largest first, is at the lowest place that values
// before it leave to it.
TEST(Planner, EveryValueLiesAsLowAsItCan) {
  std::mt19937_64 random(1);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  for (const std::int64_t count : {1, 2, 30, 200, 900}) {
    ProgramSet set;
    std::vector<std::pair<std::int64_t, ValueId>> uses;  // two a value: when, in the order of nodes
    for (std::int64_t i = 0; i < count; ++i) {
      Value value;
      value.shape = {1 + below(3) * 64 + below(5) * 1000};
      const ValueId v = set.add(value);
      const std::int64_t first = below(4 * count), reach = below(3) == 0 ? 4 * count : 12;
      uses.push_back({first, v});
      uses.push_back({std::min(first + below(reach), 4 * count), v});
    }
    std::ranges::stable_sort(uses, {}, [](const auto& use) { return use.first; });
    Program& program = set.programs.emplace_back();
    for (const auto& [when, v] : uses) program.nodes.emplace_back().op = ops::Copy<ValueId>{v, v};
    plan_memory(set);

    std::vector<Lifetime> lives = lifetimes(set, program);
    ASSERT_EQ(std::ssize(lives), count);
    const auto bytes = [&](const Lifetime& l) { return aligned(set.at(l.value).bytes()); };
    const auto place = [&](const Lifetime& l) { return set.memory.offsets[static_cast<std::size_t>(l.value.index)]; };
    std::ranges::stable_sort(lives, std::greater{}, [&](const Lifetime& l) { return set.at(l.value).bytes(); });
    for (std::size_t i = 0; i < lives.size(); ++i) {
      std::int64_t lowest = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t k = 0; k < i; ++k)
          if (lives[k].overlaps(lives[i]) && place(lives[k]) < lowest + bytes(lives[i]) &&
              lowest < place(lives[k]) + bytes(lives[k]))
            lowest = place(lives[k]) + bytes(lives[k]), moved = true;
      }
      EXPECT_EQ(place(lives[i]), lowest) << "value " << i << " of " << count;
    }
  }
}

TEST(Planner, ThePlanIsWhatIsAllocated) {
  const Chain chain(3);
  device::CpuDevice device(1);
  ASSERT_EQ(device.allocated_bytes(), 0);
  {
    const auto executor = make_executor(chain.set, device);
    EXPECT_EQ(device.allocated_bytes(), chain.set.memory.device.total);
    EXPECT_EQ(executor->arena_bytes(), chain.set.memory.device.total);
  }
  EXPECT_EQ(device.allocated_bytes(), 0);
}

TEST(Planner, RolesAddUpToThePersistentRegionAndThePeakIsNamed) {
  const Chain chain(3);
  const ArenaPlan& m = chain.set.memory.device;
  std::int64_t sum = 0;
  for (int r = 0; r < kRoles; ++r)
    if (persistent(static_cast<Role>(r))) sum += m.by_role[r];
  EXPECT_EQ(sum, m.persistent);
  EXPECT_EQ(m.total, m.persistent + m.transient_by_program[0]);
  const std::int64_t alive = m.by_role[static_cast<int>(Role::activation)] + m.by_role[static_cast<int>(Role::scratch)];
  EXPECT_GT(alive, 0);
  EXPECT_LE(alive, m.transient_by_program[0]);
  ASSERT_TRUE(m.peak);
  EXPECT_EQ(chain.set.programs[m.peak->program].name, "step");
  EXPECT_LT(m.peak->node, chain.set.programs[0].nodes.size());
}

TEST(Planner, WhatIsAliveAtThePeakIsWhatThePeakCounts) {
  const Chain chain(3);
  std::int64_t by_role[kRoles] = {};
  for (const ValueId id : alive_at_peak(chain.set)) {
    const Value& v = chain.set.at(id);
    EXPECT_FALSE(persistent(v.role)) << v.name;
    by_role[static_cast<int>(v.role)] += aligned(v.bytes());
  }
  for (const Role r : {Role::activation, Role::scratch})
    EXPECT_EQ(by_role[static_cast<int>(r)], chain.set.memory.device.by_role[static_cast<int>(r)]) << name_of(r);
}

TEST(Planner, ANodeThatWritesWhatItReadsIsAFaultUnlessItsOpMayDoSo) {
  ProgramSet set;
  Writer w(set);
  const ValueId x = w.declare("x", {4, 4}, DType::f32, Role::input),
                m = w.declare("m", {4, 4}, DType::f32, Role::output);
  w.begin("step", {});
  w.append(ops::Linear<ValueId>{x, m, m}, Phase::forward, "product");
  w.append(ops::Add<ValueId>{x, m, m}, Phase::forward, "sum");
  w.end();
  plan_memory(set);
  EXPECT_EQ(check_plan(set), (std::vector<std::string>{"step: product writes what it reads"}));
}

TEST(Planner, EveryOwnerIsAligned) {
  const Chain chain(4);
  for (std::size_t i = 0; i < chain.set.values.size(); ++i)
    if (!chain.set.values[i].alias_of.present() && chain.set.memory.offsets[i] >= 0) {
      EXPECT_EQ(chain.set.memory.offsets[i] % kAlignment, 0) << chain.set.values[i].name;
    }
}

TEST(Planner, TheCheckerSeesTwoValuesInTheSameMemory) {
  Chain chain(2);
  std::vector<std::size_t> transient;
  for (std::size_t i = 0; i < chain.set.values.size(); ++i)
    if (!persistent(chain.set.values[i].role)) transient.push_back(i);
  chain.set.memory.offsets[transient[1]] = chain.set.memory.offsets[transient[0]];
  EXPECT_FALSE(check_plan(chain.set).empty());
}

TEST(Planner, TheCheckerSeesAReadOfWhatNothingWrote) {
  Chain chain(2);
  std::vector<Node>& nodes = chain.set.programs[0].nodes;
  nodes.erase(nodes.begin());  // the embedding's node: its output is now read unwritten
  const std::vector<std::string> faults = check_plan(chain.set);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("which nothing has written"), std::string::npos) << faults[0];
}

TEST(Planner, ATiedWeightIsWrittenFirstAndAddedToAfterwards) {
  const Chain chain(1);
  bool head_written = false, embedding_added = false;
  for (const Node& node : chain.set.programs[0].nodes) {
    if (const auto* loss = std::get_if<ops::LmLoss<ValueId>>(&node.op)) head_written = !loss->accumulate_weight;
    if (const auto* embed = std::get_if<ops::EmbedGrad<ValueId>>(&node.op)) embedding_added = embed->accumulate;
  }
  EXPECT_TRUE(head_written);
  EXPECT_TRUE(embedding_added);
}

TEST(Cost, ProductsCountTwoFlopsAndBytesMoveOnce) {
  const Chain chain(1);
  for (const Node& node : chain.set.programs[0].nodes) {
    if (!std::holds_alternative<ops::Linear<ValueId>>(node.op)) continue;
    EXPECT_EQ(node.cost.flops, 2.0 * kTokens * kHidden * kHidden);
    EXPECT_EQ(node.cost.bytes, 4.0 * (kTokens * kHidden * 2 + kHidden * kHidden));
  }
}

}  // namespace
}  // namespace redline::program
