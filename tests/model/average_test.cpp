// The average of the weights follows them step by step as a host computes it, on any number of ranks; an evaluation of
// it is that of a model with such weights, and leaves everything as it was. Norms of tensors are those of a host, and
// looking at them changes no bit of a step.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "model/tiny.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "testing/check_plan.h"
#include "testing/thread_group.h"

namespace redline::model {
namespace {

using namespace redline::testing;
using dist::Mode;

LoweringOptions average_options(DType compute = DType::f32) {
  return {.batch = kShortShape, .compute = compute, .average = true, .norms = true};
}

data::Batch batch_number(std::int64_t k, std::int64_t vocab) {
  const auto key = static_cast<std::uint64_t>(k);
  return batch_of(kShortShape, {random_document(key, 15, vocab), random_document(key + 50, 14, vocab)});
}

config::Train ema() {
  config::Train t;
  t.average = "ema";
  t.average_steps = 3;
  return t;
}

// One update over two micro-batches of this rank.
UpdateResult averaged_step(Engine& engine, std::int64_t index, int rank = 0, int ranks = 1, bool look = false) {
  double pairs = 0;
  for (const int micro : {0, 1}) {
    const data::Batch batch = batch_number(100 * index + 2 * rank + micro, engine.model().vocab);
    engine.upload(batch);
    engine.set_step(static_cast<std::uint64_t>(index), 1e-2, 0, 0);
    engine.micro_step(micro == 0, micro == 1);
    pairs += static_cast<double>(batch.pairs);
    if (look && micro == 0) engine.small_gradient(static_cast<std::uint64_t>(index), pairs);
  }
  engine.set_step(static_cast<std::uint64_t>(index), 1e-2, pairs, 0, optim::average_share(ema(), index, 100));
  if (look)
    engine.update_with_norms();
  else
    engine.update();
  engine.post_result();
  EXPECT_GT(ranks, rank);
  return engine.take_result().update;
}

TEST(Average, FollowsTheWeightsAsAHostComputesIt) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    device::CpuDevice device(2);
    TinyEngine engine(tiny_model("llama"), average_options(compute), device);
    EXPECT_EQ(array_of(engine, optim::kAverage), array_of(engine, optim::kParameters)) << "it begins with them";
    std::vector<double> want;
    for (std::int64_t index = 0; index < 6; ++index) {
      EXPECT_EQ(averaged_step(engine, index).finite, 1.0f);
      const std::vector<float> weights = array_of(engine, optim::kParameters), got = array_of(engine, optim::kAverage);
      want.resize(weights.size());
      double apart = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        want[i] +=
            (static_cast<double>(weights[i]) - want[i]) / static_cast<double>(std::min<std::int64_t>(index + 1, 3));
        ASSERT_NEAR(got[i], want[i], 1e-6) << index;
        apart = std::max(apart, std::fabs(want[i] - static_cast<double>(weights[i])));
      }
      EXPECT_EQ(apart > 1e-4, index > 0);
    }
  }
}

TEST(Average, IsEvaluatedInTheWeightsPlaceAndTheyComeBack) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    device::CpuDevice device(2);
    TinyEngine engine(tiny_model("qwen3"), average_options(compute), device),
        other(tiny_model("qwen3"), average_options(compute), device);
    other.initialise(4);
    for (std::int64_t index = 0; index < 4; ++index) averaged_step(engine, index);
    const data::Batch held_out = batch_number(999, engine.model().vocab);
    engine.upload(held_out);
    const double loss = engine.evaluate();
    const std::vector<float> weights = array_of(engine, optim::kParameters),
                             average = array_of(engine, optim::kAverage);
    const double of_average = loss_of_average(engine);
    EXPECT_EQ(engine.evaluate(), loss);
    EXPECT_EQ(array_of(engine, optim::kParameters), weights);
    EXPECT_EQ(array_of(engine, optim::kAverage), average);
    std::ranges::copy(average, array_on_host(other, optim::kAverage).begin());
    other.upload(held_out);
    EXPECT_EQ(loss_of_average(other), of_average) << "whatever its own weights are";
    EXPECT_NE(of_average, loss);
  }
}

// An update would be of the average, and a save would keep it as the weights.
TEST(Average, NothingTouchesTheWeightsWhileTheAverageIsInTheirPlace) {
  device::CpuDevice device(1);
  TinyEngine engine(tiny_model("llama"), average_options(), device);
  averaged_step(engine, 0);
  {
    const auto shown = engine.show_average();
    EXPECT_THROW(engine.update(), MachineError);
    EXPECT_THROW(engine.micro_step(true), MachineError);
    EXPECT_THROW(engine.parameters_finite(), MachineError);
    EXPECT_THROW(engine.state(), MachineError);
  }
  EXPECT_TRUE(engine.parameters_finite());
  averaged_step(engine, 1);
}

TEST(Average, StandsStillWhereAnUpdateIsNotMade) {
  device::CpuDevice device(1);
  TinyEngine engine(tiny_model("llama"), average_options(), device);
  for (std::int64_t index = 0; index < 2; ++index) averaged_step(engine, index);
  const std::vector<float> before = array_of(engine, optim::kAverage);
  array_on_host(engine, optim::kGradients)[5] = std::numeric_limits<float>::quiet_NaN();
  engine.update();
  EXPECT_EQ(array_of(engine, optim::kAverage), before);
}

// A row of all ranks, whole: what each has of it.
struct AveragedRun {
  std::vector<float> average;
  double of_average = 0;
  NormSums sums;
};
AveragedRun train_on(int ranks, Mode mode, DType compute) {
  AveragedRun trained;
  std::mutex mutex;
  on_ranks(ranks, [&](dist::Group& group) {
    LoweringOptions o = average_options(compute);
    o.sharing = {.rank = group.rank(), .ranks = ranks, .mode = mode};
    o.execution.group = &group;
    device::CpuDevice device(1);
    Engine engine(tiny_model("llama"), o, device);
    EXPECT_EQ(program::check_plan(engine.programs()), std::vector<std::string>{});
    engine.initialise(3);
    for (std::int64_t index = 0; index < 4; ++index) averaged_step(engine, index, group.rank(), ranks, index == 3);
    const NormSums sums = engine.norm_sums();
    engine.upload(batch_number(999, engine.model().vocab));
    const double loss = engine.evaluate();
    const double of_average = loss_of_average(engine);
    EXPECT_EQ(engine.evaluate(), loss);
    const std::vector<float> here = array_of(engine, optim::kAverage);
    const Range range = engine.lowered().state[engine.lowered().row(optim::kAverage)].range;
    EXPECT_EQ(range, engine.lowered().updated);
    const std::scoped_lock lock(mutex);
    trained.average.resize(static_cast<std::size_t>(engine.layout().total));
    std::ranges::copy(here, trained.average.begin() + range.begin);
    trained.of_average = of_average;
    trained.sums = sums;
  });
  return trained;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance * want[i]) << i;
}

TEST(Average, RanksHaveTheirPartsOfOneAndTheSameNorms) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    // Sums in another order: now and then bf16 rounds to the other side.
    const double tolerance = compute == DType::f32 ? 1e-4 : 1e-2;
    const AveragedRun ddp = train_on(2, Mode::ddp, compute);
    for (const Mode mode : {Mode::zero1, Mode::fsdp}) {
      const AveragedRun other = train_on(2, mode, compute);
      if (mode == Mode::zero1) {  // fsdp adds ranks before micro-steps
        EXPECT_EQ(other.average, ddp.average);
        EXPECT_EQ(other.of_average, ddp.of_average);
      }
      EXPECT_NEAR(other.of_average, ddp.of_average, tolerance * ddp.of_average) << name_of(mode);
      expect_close(other.sums.gradients, ddp.sums.gradients, tolerance);
      expect_close(other.sums.weights, ddp.sums.weights, tolerance);
      EXPECT_EQ(other.sums.small.counts.pairs, ddp.sums.small.counts.pairs);
      EXPECT_NE(other.sums.updates, std::vector<double>{});
    }
  }
}

TEST(TensorNorms, AreThoseOfAHostAndLookingChangesNoBit) {
  device::CpuDevice device(2);
  LoweringOptions plain = average_options();
  plain.norms = false;
  Engine engine(tiny_model("qwen3"), average_options(), device), unseen(tiny_model("qwen3"), plain, device);
  for (Engine* e : {&engine, &unseen}) {
    e->initialise(3);
    averaged_step(*e, 0);
    averaged_step(*e, 1);
  }
  const std::vector<float> before = array_of(engine, optim::kParameters);
  const UpdateResult update = averaged_step(engine, 2, 0, 1, true);
  averaged_step(unseen, 2);
  EXPECT_EQ(array_of(engine, optim::kParameters), array_of(unseen, optim::kParameters));
  EXPECT_EQ(array_of(engine, optim::kAverage), array_of(unseen, optim::kAverage));

  const std::vector<float> after = array_of(engine, optim::kParameters), g = array_of(engine, optim::kGradients);
  const NormSums sums = engine.norm_sums();
  const std::vector<TensorNorm> norms = tensor_norms(engine.table(), sums, update.counts.pairs);
  ASSERT_EQ(norms.size(), engine.table().size());
  double whole = 0;
  for (std::size_t t = 0; t < norms.size(); ++t) {
    const auto first = static_cast<std::size_t>(engine.layout().offsets[t]);
    const auto norm = [&](const auto& value) {
      double sum = 0;
      for (std::size_t i = first; i < first + static_cast<std::size_t>(engine.table()[t].shape.elements()); ++i)
        sum += std::pow(static_cast<double>(value(i)), 2);
      return std::sqrt(sum);
    };
    const std::string& name = engine.table()[t].name;
    EXPECT_EQ(norms[t].name, name);
    const double gradient = norm([&](std::size_t i) { return g[i]; }) / update.counts.pairs;
    EXPECT_NEAR(norms[t].gradient, gradient, 1e-9 * gradient) << name;
    EXPECT_NEAR(norms[t].weight, norm([&](std::size_t i) { return after[i]; }), 1e-9 * norms[t].weight) << name;
    EXPECT_NEAR(norms[t].update, norm([&](std::size_t i) { return after[i] - before[i]; }), 1e-9 * norms[t].update);
    EXPECT_GT(norms[t].update, 0) << name;
    whole += gradient * gradient;
  }
  EXPECT_NEAR(std::sqrt(whole), update.grad_norm, 1e-5 * std::sqrt(whole));
  EXPECT_GT(sums.small.grad_norm, 0);
  EXPECT_EQ(sums.small.counts.pairs, 27) << "of the first micro-batch";
}

TEST(TensorNorms, TakeNoMemoryThatAStepDoesNotAndLeaveUpdatesOutWhereACopyHasNoRoom) {
  const config::Model model = tiny_model("llama");
  for (const std::int64_t rows : {1, 8}) {
    LoweringOptions with = average_options(), without = average_options();
    with.batch = without.batch = {rows, rows == 1 ? 2 : 32, 8};
    without.norms = false;
    const LoweredModel a = lower(model, with), b = lower(model, without);
    const auto transient = [](const LoweredModel& m) {
      return m.set.memory.device.total - m.set.memory.device.persistent;
    };
    EXPECT_EQ(transient(a), transient(b)) << rows;
    EXPECT_EQ(a.norms.has_updates, rows == 8);
    EXPECT_EQ(program::check_plan(a.set), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace redline::model
