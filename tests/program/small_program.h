// A program written by hand over a few parameters: declared one after the other, run on the CPU, and its gradients held
// against finite differences of its own loss.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/device.h"
#include "program/builder.h"
#include "program/executor.h"
#include "program/planner.h"
#include "testing/check_plan.h"

namespace redline::program {

inline constexpr float kEps = 1e-5f;  // of norms

class SmallProgram {
 public:
  static constexpr std::int64_t kTokens = 12, kHidden = 8, kVocab = 11;

  SmallProgram() : b(set) {
    tokens = b.declare("tokens", {kTokens}, DType::i32, Role::input);
    targets = b.declare("targets", {kTokens}, DType::i32, Role::input);
    losses = b.declare("losses", {kTokens}, DType::f32, Role::output);
    loss_sum = b.declare("loss sum", {1}, DType::f64, Role::output);
  }

  ValueId parameter(const std::string& name, Shape shape) {
    const ValueId w = b.declare(name, shape, DType::f32, Role::parameter);
    const ValueId g = b.declare(name + " gradient", shape, DType::f32, Role::gradient);
    b.pair_gradient(w, g);
    parameters.push_back({w, g});
    return w;
  }
  ValueId matrix(const std::string& name, std::int64_t rows = kHidden, std::int64_t columns = kHidden) {
    return parameter(name, {rows, columns});
  }
  ValueId vector(const std::string& name) { return parameter(name, {kHidden}); }
  ValueId integers(const std::string& name, std::vector<std::int32_t> values) {
    const ValueId id = b.declare(name, {std::ssize(values)}, DType::i32, Role::input);
    inputs.emplace_back(id, std::move(values));
    return id;
  }

  void begin(Recompute recompute = Recompute::none) {
    b.begin("step", {.training = true, .loss_chunk = 5, .recompute = recompute});
  }
  void end(ValueId x, ValueId head) {
    b.lm_loss(x, head, targets, {losses, loss_sum});
    b.backward();
    b.end();
    plan_memory(set);
  }

  // The program as it was planned, on parameters drawn by seed, and the batch in place.
  void bind(std::uint64_t seed = 1) {
    executor = make_executor(set, device);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor w = executor->tensor(parameters[i].first);
      const Random random(seed, i);
      for (std::int64_t j = 0; j < w.elements(); ++j)
        w.f32()[j] = static_cast<float>(random.uniform(static_cast<std::uint64_t>(j)) - 0.5) + (w.shape.rank() == 1);
    }
    for (std::int64_t i = 0; i < kTokens; ++i) {
      executor->tensor(tokens).i32()[i] = static_cast<std::int32_t>(i * 5 % kVocab);
      executor->tensor(targets).i32()[i] = static_cast<std::int32_t>((i * 3 + 1) % kVocab);
    }
    for (const auto& [id, values] : inputs) executor->write(id, values);
    executor->poison_transients();
  }
  double run() {
    executor->run("step");
    return *executor->tensor(loss_sum).as<double>();
  }
  std::vector<float> gradients() {
    run();
    std::vector<float> all;
    for (const auto& [w, g] : parameters) {
      const Tensor t = executor->tensor(g);
      all.insert(all.end(), t.f32(), t.f32() + t.elements());
    }
    return all;
  }

  void expect_true_gradients() {
    ASSERT_EQ(check_plan(set), std::vector<std::string>{});
    bind();
    const std::vector<float> found = gradients();
    constexpr float kStep = 0x1p-7f;
    std::size_t at = 0;
    for (const auto& [w, g] : parameters) {
      float* const p = executor->tensor(w).f32();
      for (std::int64_t j = 0; j < executor->tensor(w).elements(); ++j, ++at) {
        const float before = p[j];
        p[j] = before + kStep;
        const double above = run();
        p[j] = before - kStep;
        const double below = run();
        p[j] = before;
        const double expected = (above - below) / (2.0 * static_cast<double>(kStep));
        EXPECT_NEAR(static_cast<double>(found[at]), expected, 5e-3 * (1 + std::abs(expected)))
            << set.at(w).name << " " << j;
      }
    }
  }

  std::vector<std::string> node_names() const {
    std::vector<std::string> names;
    for (const Node& node : set.programs.at(0).nodes) names.push_back(node.full_name());
    return names;
  }

  ProgramSet set;
  Builder b;
  ValueId tokens, targets, losses, loss_sum;
  std::vector<std::pair<ValueId, ValueId>> parameters;  // and their gradients
  std::vector<std::pair<ValueId, std::vector<std::int32_t>>> inputs;
  device::CpuDevice device{1};
  std::unique_ptr<Executor> executor;
};

}  // namespace redline::program
