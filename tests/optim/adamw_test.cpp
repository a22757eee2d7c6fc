// AdamW and the average of weights against doubles, updates that must not happen, and what AdamW keeps.
#include "base/error.h"
#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

TEST(AdamW, MatchesDoublesWithDecayAndWithout) {
  for (std::int64_t n : {1, 5, 16384, 40001}) {
    for (float decay : {0.2f, 0.0f}) {
      const AdamWSettings s{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = decay};
      Memory memory;
      const Tensor p = memory.uniform({n}), g = memory.uniform({n}, -5, 5), m = memory.uniform({n});
      const Tensor v = memory.uniform({n}, 0, 1);
      const StepState state{.lr = 0.01f, .correction1 = 0.19f, .correction2 = 0.0975f};
      const UpdateResult result{.grad_norm = 1, .grad_scale = 0.125f, .finite = 1};
      Values want_p = values_of(p), want_m = values_of(m), want_v = values_of(v);
      const Values gradient = values_of(g);
      for (std::size_t i = 0; i < want_p.size(); ++i) {
        const double scaled = 0.125 * gradient[i], b1 = static_cast<double>(s.beta1), b2 = static_cast<double>(s.beta2);
        const double lr = static_cast<double>(state.lr);
        want_m[i] = b1 * want_m[i] + (1 - b1) * scaled;
        want_v[i] = b2 * want_v[i] + (1 - b2) * scaled * scaled;
        const double step =
            want_m[i] / static_cast<double>(state.correction1) /
            (std::sqrt(want_v[i] / static_cast<double>(state.correction2)) + static_cast<double>(s.eps));
        want_p[i] = want_p[i] - lr * static_cast<double>(decay) * want_p[i] - lr * step;
      }
      run_checked(memory, AdamW<Tensor>{p, g, m, v, {}, memory.object(state), memory.object(result), s});
      expect_close("parameters", p, want_p, 2e-7);
      expect_close("moment1", m, want_m, 3e-7);
      expect_close("moment2", v, want_v, 3e-7);
    }
  }
}

TEST(AdamW, TakesTheShareOfTheWeightDecayThatTheStepSays) {
  const auto updated = [](float decay, float share) {
    Memory memory;
    const Tensor p = memory.uniform({1000}), g = memory.uniform({1000}), m = memory.uniform({1000});
    const StepState state{.lr = 0.01f, .weight_decay_share = share};
    const UpdateResult result{.grad_norm = 1, .grad_scale = 1, .finite = 1};
    run_checked(memory, AdamW<Tensor>{p,
                                      g,
                                      m,
                                      memory.uniform({1000}, 0, 1),
                                      {},
                                      memory.object(state),
                                      memory.object(result),
                                      {.weight_decay = decay}});
    return values_of(p);
  };
  EXPECT_EQ(updated(0.2f, 0.5f), updated(0.1f, 1));
  EXPECT_EQ(updated(0.2f, 0), updated(0, 1));
  EXPECT_NE(updated(0.2f, 0.5f), updated(0.2f, 1));
}

TEST(AdamW, TouchesNothingWhenNotFinite) {
  Memory memory;
  const Tensor p = memory.uniform({1000}), g = memory.uniform({1000}), m = memory.uniform({1000});
  const Tensor v = memory.uniform({1000}, 0, 1);
  g.f32()[3] = std::numeric_limits<float>::quiet_NaN();
  const Values before_p = values_of(p), before_m = values_of(m), before_v = values_of(v);
  const UpdateResult result{.grad_norm = std::numeric_limits<float>::quiet_NaN(), .grad_scale = 1, .finite = 0};
  run_checked(memory, AdamW<Tensor>{p, g, m, v, {}, memory.object(StepState{.lr = 1}), memory.object(result), {}});
  EXPECT_EQ(values_of(p), before_p);
  EXPECT_EQ(values_of(m), before_m);
  EXPECT_EQ(values_of(v), before_v);
}

// Fewer bytes than it would write there.
TEST(AdamW, AWorkingCopyThatIsNotFp32IsRefused) {
  Memory memory;
  ThreadPool pool(1);
  const Tensor x = memory.uniform({100}), working = memory.array(DType::bf16, {100});
  const AdamW<Tensor> op{x, x, x, x, working, memory.object(StepState{}), memory.object(UpdateResult{.finite = 1}), {}};
  EXPECT_THROW(cpu::run(op, pool), MachineError);
  EXPECT_THROW(cpu::run(Refresh<Tensor>{x, working}, pool), MachineError);
  EXPECT_TRUE(memory.guards_whole());
}

TEST(Average, MatchesDoublesAndBeginsWithTheWeights) {
  for (const std::int64_t n : {1, 5, 16384, 40001})
    for (const float share : {1.0f, 0.25f, 1e-3f}) {
      Memory memory;
      const Tensor p = memory.uniform({n}), average = memory.uniform({n});
      Values want = values_of(average);
      const Values weights = values_of(p);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(share) * (weights[i] - want[i]);
      run_checked(memory, Average<Tensor>{p, average, memory.object(StepState{.average = share}),
                                          memory.object(UpdateResult{.finite = 1})});
      const Values got = values_of(average);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6);
      if (share == 1) {
        EXPECT_EQ(got, weights) << "to the bit";
      }
    }
}

TEST(Average, IsLeftAloneWhereTheUpdateWasNotMade) {
  Memory memory;
  const Tensor p = memory.uniform({1001}), average = memory.uniform({1001});
  const Values before = values_of(average);
  run_checked(memory,
              Average<Tensor>{p, average, memory.object(StepState{.average = 0.5f}), memory.object(UpdateResult{})});
  EXPECT_EQ(values_of(average), before);
}

TEST(Exchange, BothChangePlaces) {
  Memory memory;
  const Tensor p = memory.uniform({40001}), average = memory.uniform({40001});
  const Values weights = values_of(p), means = values_of(average);
  run_checked(memory, Exchange<Tensor>{p, average});
  EXPECT_EQ(values_of(p), means);
  EXPECT_EQ(values_of(average), weights);
}

TEST(State, AdamWKeepsTwoFloatsForEachOfItsParameters) {
  const StateTable table = adamw_state({128, 1000});
  ASSERT_EQ(table.size(), 2u);
  for (const StateArray& row : table) {
    EXPECT_TRUE(row.by_parameter());
    EXPECT_EQ(row.elements(), 872);
    EXPECT_EQ(row.dtype, DType::f32);
    EXPECT_EQ(row.file, "optimizer.safetensors");
  }
  EXPECT_EQ(table[0].stored_as, "exp_avg.");
  EXPECT_EQ(table[1].stored_as, "exp_avg_sq.");
}

TEST(State, ARowMayHaveOneElementForABlockOrBeAboutNoParameter) {
  const StateArray scales{.name = "scales", .range = {0, 1000}, .block = 256};
  EXPECT_FALSE(scales.by_parameter());
  EXPECT_EQ(scales.elements(), 4);
  const StateArray history{.name = "history", .independent = 16};
  EXPECT_FALSE(history.by_parameter());
  EXPECT_EQ(history.elements(), 16);
}

}  // namespace
}  // namespace redline::optim
