// The norm and AdamW against doubles, and an update that must not happen; what AdamW keeps.
#include "base/error.h"
#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

const auto kRun = [](auto& op, auto& pool) { cpu::run(op, pool); };

// Both nodes of a norm over all gradients.
void run_norm(Memory& memory, SumSquares<Tensor> sum, GradNorm<Tensor> norm) {
  sum.totals = norm.totals = memory.doubles(kTotals);
  sum.all = sum.gradients.elements();
  run_checked(memory, sum, kRun);
  run_checked(memory, norm, kRun);
}

UpdateResult norm_of(Memory& memory, const Tensor& gradients, double loss_sum, float inv_pairs, float clip) {
  const Tensor loss = memory.doubles(1), result = memory.object(UpdateResult{});
  *loss.as<double>() = loss_sum;
  const Tensor state = memory.object(StepState{.counts = {.pairs = 1 / static_cast<double>(inv_pairs)}});
  run_norm(memory, {gradients, loss, state}, {{}, result, clip});
  return *result.as<UpdateResult>();
}

TEST(GradNorm, MatchesDoublesAndClips) {
  for (std::int64_t n : {1, 7, 63, 64, 65, 1000, 100003}) {
    Memory memory;
    const Tensor gradients = memory.uniform({n}, -3, 3);
    const Values g = values_of(gradients);
    const double norm = std::sqrt(dot(g, g)) * 0.25;
    for (float clip : {0.0f, static_cast<float>(norm) * 0.1f, static_cast<float>(norm) * 10.0f}) {
      const UpdateResult r = norm_of(memory, gradients, 1.0, 0.25f, clip);
      const double factor = clip > 0 ? std::min(1.0, static_cast<double>(clip) / (norm + 1e-6)) : 1.0;
      EXPECT_NEAR(r.grad_norm, norm, 1e-6 * norm);
      EXPECT_NEAR(r.grad_scale, 0.25 * factor, 1e-6 * factor);
      EXPECT_EQ(r.finite, 1.0f);
    }
  }
}

TEST(GradNorm, OfNoPairsIsZero) {
  Memory memory;
  const Tensor gradients = memory.uniform({1001}, 0, 0), loss = memory.doubles(1);
  const Tensor result = memory.object(UpdateResult{}), state = memory.object(StepState{.counts = {.pairs = 0}});
  run_norm(memory, {gradients, loss, state}, {{}, result, 1.0f});
  const UpdateResult& r = *result.as<UpdateResult>();
  EXPECT_EQ(r.grad_norm, 0.0f);
  EXPECT_EQ(r.grad_scale, 0.0f);
  EXPECT_EQ(r.finite, 1.0f);
}

TEST(GradNorm, SaysWhenSomethingIsNotFinite) {
  Memory memory;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (float bad : {infinity, -infinity, nan}) {
    const Tensor gradients = memory.uniform({1001});
    EXPECT_EQ(norm_of(memory, gradients, static_cast<double>(bad), 1, 1).finite, 0.0f) << "loss";
    gradients.f32()[1000] = bad;
    EXPECT_EQ(norm_of(memory, gradients, 1.0, 1, 1).finite, 0.0f) << "gradient";
  }
  const Tensor large = memory.uniform({16}, 3e38, 3.1e38);
  EXPECT_EQ(norm_of(memory, large, 1.0, 1, 1).finite, 0.0f) << "a norm beyond float";
  EXPECT_EQ(norm_of(memory, large, 1.0, 1e-3f, 1).finite, 1.0f) << "squares beyond float";
}

// Ranks that hold whole groups of the gradients: their totals add up to those of one that holds all, to the bit.
TEST(GradNorm, TotalsOfShardsAddUpToTheBit) {
  for (const std::int64_t n : {1, 1000, 300007, 1 << 20}) {
    Memory memory;
    const Tensor gradients = memory.uniform({n}, -3, 3), loss = memory.object(2.5);
    const Tensor state = memory.object(StepState{.counts = {.pairs = 7, .stop = 1}});
    const auto totals_of = [&](std::int64_t begin, std::int64_t end) {
      const Tensor totals = memory.doubles(kTotals);
      const Tensor part{gradients.f32() + begin, DType::f32, {end - begin}};
      run_checked(memory, SumSquares<Tensor>{part, loss, state, totals, begin, n}, kRun);
      return values_of(totals);
    };
    const Values whole = totals_of(0, n);
    for (const int ranks : {2, 3, 7}) {
      const Shards shards{n, ranks};
      Values sum(static_cast<std::size_t>(kTotals), 0.0);
      for (int rank = 0; rank < ranks; ++rank) {
        const Values part = totals_of(shards.begin(rank), shards.end(rank));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      for (std::size_t g = 0; g < static_cast<std::size_t>(kCutGroups); ++g)
        ASSERT_EQ(sum[g], whole[g]) << n << " " << g;
      EXPECT_EQ(sum[static_cast<std::size_t>(kLossTotal)], 2.5 * ranks);
      EXPECT_EQ(sum[static_cast<std::size_t>(kCountTotals)], 7.0 * ranks);
      EXPECT_EQ(sum.back(), ranks) << "asked to stop";
    }
  }
}

// Norms of one value, then one that is far from it: only updates that are made move what is usual.
TEST(GradNorm, HoldsANormAgainstTheUsualOnceItIsKnown) {
  Memory memory;
  const Tensor gradients = memory.uniform({64}, 1, 2), loss = memory.object(1.0);
  const Tensor state = memory.object(StepState{.counts = {.pairs = 1}}), usual = memory.object(UsualNorm{});
  const Tensor result = memory.object(UpdateResult{});
  const auto norm = [&](float factor) {
    state.as<StepState>()->counts.pairs = 1 / static_cast<double>(factor);
    run_norm(memory, {gradients, loss, state}, {{}, result, 1, usual, 4});
    return *result.as<UpdateResult>();
  };
  const float one = norm_of(memory, gradients, 1.0, 1, 1).grad_norm;
  const double log2 = std::log(2.0), mean = std::log(static_cast<double>(one));
  EXPECT_EQ(norm(1000).finite, 1.0f) << "nothing is usual yet";
  *usual.as<UsualNorm>() = {};
  for (int i = 0; i < static_cast<int>(kUsualLeast); ++i) {
    const UpdateResult r = norm(i % 2 ? 2.0f : 0.5f);
    EXPECT_EQ(r.limit, 0.0f);
    EXPECT_EQ(r.finite, 1.0f);
  }
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean, 1e-5);
  const UsualNorm before = *usual.as<UsualNorm>();
  for (const float factor : {4.1f, 1e6f, std::numeric_limits<float>::quiet_NaN()}) {
    const UpdateResult r = norm(factor);
    EXPECT_EQ(r.finite, 0.0f) << factor;
    EXPECT_EQ(r.grad_scale, 0.0f);
    EXPECT_NEAR(r.limit, 4 * one, 1e-4f * one);
    EXPECT_EQ(usual.as<UsualNorm>()->mean_log, before.mean_log);
    EXPECT_EQ(usual.as<UsualNorm>()->count, before.count);
  }
  EXPECT_EQ(norm(0).finite, 1.0f) << "a norm of zero is no spike";
  EXPECT_EQ(usual.as<UsualNorm>()->mean_log, before.mean_log) << "and has no logarithm";
  const UpdateResult made = norm(2), plain = norm_of(memory, gradients, 1.0, 2, 1);
  EXPECT_EQ(made.grad_norm, plain.grad_norm);
  EXPECT_EQ(made.grad_scale, plain.grad_scale);
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean + log2 / 21, 1e-5);
  for (int i = 0; i < 2000; ++i) norm(2);
  EXPECT_EQ(usual.as<UsualNorm>()->count, kUsualMost);
  EXPECT_NEAR(usual.as<UsualNorm>()->mean_log, mean + log2, 1e-5) << "what was is forgotten";
}

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
      run_checked(memory, AdamW<Tensor>{p, g, m, v, {}, memory.object(state), memory.object(result), s}, kRun);
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
    run_checked(memory,
                AdamW<Tensor>{p,
                              g,
                              m,
                              memory.uniform({1000}, 0, 1),
                              {},
                              memory.object(state),
                              memory.object(result),
                              {.weight_decay = decay}},
                kRun);
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
  run_checked(memory, AdamW<Tensor>{p, g, m, v, {}, memory.object(StepState{.lr = 1}), memory.object(result), {}},
              kRun);
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
