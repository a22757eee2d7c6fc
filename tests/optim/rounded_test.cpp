// Gradients and masters in bf16: what is rounded is a neighbour of the number, in the mean the number itself, and
// follows from the step, the place and, of gradients, the micro-batch alone.
#include "optim/rounded.h"

#include "optim/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

RoundAtRandom<Tensor> rounding(Memory& memory, std::int64_t n, const StepState& state, bool accumulate) {
  return {.x = memory.uniform({n}, -1, 1),
          .state = memory.object(state),
          .kept = memory.zeros({n}),
          .begin = 0,
          .all = n,
          .accumulate = accumulate};
}

TEST(RoundAtRandom, TakesOneOfTheTwoNeighbours) {
  Memory memory;
  ThreadPool pool(3);
  const std::int64_t n = 100'003;
  const RoundAtRandom<Tensor> op = rounding(memory, n, {.seed = 3, .step = 5, .first_token = 64}, false);
  op.x.f32()[0] = INFINITY;
  op.x.f32()[1] = NAN;
  op.x.f32()[2] = 0.5f;  // has no more bits than bf16
  cpu::run(op, pool);
  const float* const g = op.kept.f32();
  EXPECT_EQ(g[0], INFINITY);
  EXPECT_TRUE(std::isnan(g[1]));
  EXPECT_EQ(g[2], 0.5f);
  std::int64_t up = 0;
  for (std::int64_t i = 3; i < n; ++i) {
    const float x = op.x.f32()[i];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(g[i]) & 0xFFFFu, 0u);
    EXPECT_LE(std::abs(g[i] - x), std::abs(x) * 0x1p-7f) << i;
    up += std::abs(g[i]) > std::abs(x);
  }
  EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(n), 0.5, 0.01);
}

// A thousand small numbers onto a large one: rounded to the nearest, none of them would arrive.
TEST(RoundAtRandom, LosesNothingInTheMean) {
  Memory memory;
  ThreadPool pool(1);
  const std::int64_t n = 512;
  RoundAtRandom<Tensor> op = rounding(memory, n, {.seed = 1}, true);
  std::fill_n(op.kept.f32(), n, 1.0f);
  std::fill_n(op.x.f32(), n, 0x1p-11f);
  for (std::uint64_t micro = 0; micro < 1000; ++micro) {
    op.state.as<StepState>()->first_token = micro;
    cpu::run(op, pool);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(op.kept.f32()[i]);
  EXPECT_NEAR(sum / static_cast<double>(n), 1 + 1000 * 0x1p-11, 0.01);
}

TEST(RoundAtRandom, DependsOnStepMicroBatchAndPlaceAlone) {
  Memory memory;
  const std::int64_t n = 70'001;
  const StepState state{.seed = 3, .step = 5, .first_token = 64};
  const RoundAtRandom<Tensor> whole = rounding(memory, n, state, false);
  ThreadPool one(1), three(3);
  cpu::run(whole, one);
  // In parts, by other threads.
  for (const std::int64_t cut : {1, 7, 8, 40'000}) {
    const Tensor other = memory.zeros({n});
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, {cut, n}}) {
      RoundAtRandom<Tensor> part = whole;
      part.x = {whole.x.f32() + begin, DType::f32, {end - begin}};
      part.kept = {other.f32() + begin, DType::f32, {end - begin}};
      part.begin = begin;
      cpu::run(part, three);
    }
    EXPECT_TRUE(std::equal(other.f32(), other.f32() + n, whole.kept.f32())) << cut;
  }
  for (const StepState& another :
       {StepState{.seed = 4, .step = 5, .first_token = 64}, StepState{.seed = 3, .step = 6, .first_token = 64},
        StepState{.seed = 3, .step = 5, .first_token = 65}}) {
    RoundAtRandom<Tensor> op = whole;
    op.state = memory.object(another);
    op.kept = memory.zeros({n});
    cpu::run(op, one);
    EXPECT_FALSE(std::equal(op.kept.f32(), op.kept.f32() + n, whole.kept.f32()));
  }
}

TEST(RoundAtRandom, MastersHaveBitsOfTheirOwnAndOfNoMicroBatch) {
  Memory memory;
  const std::int64_t n = 10'001;
  ThreadPool pool(1);
  const RoundAtRandom<Tensor> gradients = rounding(memory, n, {.seed = 3, .step = 5}, false);
  cpu::run(gradients, pool);
  const auto masters = [&](const StepState& state) {
    RoundAtRandom<Tensor> op = gradients;
    op.what = Rounded::masters;
    op.state = memory.object(state);
    op.kept = memory.zeros({n});
    cpu::run(op, pool);
    return std::vector<float>(op.kept.f32(), op.kept.f32() + n);
  };
  const std::vector<float> first = masters({.seed = 3, .step = 5});
  EXPECT_FALSE(std::equal(first.begin(), first.end(), gradients.kept.f32()));
  EXPECT_EQ(masters({.seed = 3, .step = 5, .first_token = 64}), first);
  EXPECT_NE(masters({.seed = 3, .step = 6}), first);
  EXPECT_NE(masters({.seed = 4, .step = 5}), first);
}

}  // namespace
}  // namespace redline::optim
