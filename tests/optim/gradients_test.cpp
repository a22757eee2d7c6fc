// Gradients in bf16: what is rounded is a neighbour of the number, in the mean the number itself, and follows from the
// step, the micro-batch and the place alone.
#include "optim/gradients.h"

#include "optim/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

RoundGradients<Tensor> rounding(Memory& memory, std::int64_t n, const StepState& state, bool accumulate) {
  return {.x = memory.uniform({n}, -1, 1),
          .state = memory.object(state),
          .gradients = memory.zeros({n}),
          .begin = 0,
          .all = n,
          .accumulate = accumulate};
}

TEST(RoundGradients, TakesOneOfTheTwoNeighbours) {
  Memory memory;
  ThreadPool pool(3);
  const std::int64_t n = 100'003;
  const RoundGradients<Tensor> op = rounding(memory, n, {.seed = 3, .step = 5, .first_token = 64}, false);
  op.x.f32()[0] = INFINITY;
  op.x.f32()[1] = NAN;
  op.x.f32()[2] = 0.5f;  // has no more bits than bf16
  cpu::run(op, pool);
  const float* const g = op.gradients.f32();
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
TEST(RoundGradients, LosesNothingInTheMean) {
  Memory memory;
  ThreadPool pool(1);
  const std::int64_t n = 512;
  RoundGradients<Tensor> op = rounding(memory, n, {.seed = 1}, true);
  std::fill_n(op.gradients.f32(), n, 1.0f);
  std::fill_n(op.x.f32(), n, 0x1p-11f);
  for (std::uint64_t micro = 0; micro < 1000; ++micro) {
    op.state.as<StepState>()->first_token = micro;
    cpu::run(op, pool);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(op.gradients.f32()[i]);
  EXPECT_NEAR(sum / static_cast<double>(n), 1 + 1000 * 0x1p-11, 0.01);
}

TEST(RoundGradients, DependsOnStepMicroBatchAndPlaceAlone) {
  Memory memory;
  const std::int64_t n = 70'001;
  const StepState state{.seed = 3, .step = 5, .first_token = 64};
  const RoundGradients<Tensor> whole = rounding(memory, n, state, false);
  ThreadPool one(1), three(3);
  cpu::run(whole, one);
  // In parts, by other threads.
  for (const std::int64_t cut : {1, 7, 8, 40'000}) {
    const Tensor other = memory.zeros({n});
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, {cut, n}}) {
      RoundGradients<Tensor> part = whole;
      part.x = {whole.x.f32() + begin, DType::f32, {end - begin}};
      part.gradients = {other.f32() + begin, DType::f32, {end - begin}};
      part.begin = begin;
      cpu::run(part, three);
    }
    EXPECT_TRUE(std::equal(other.f32(), other.f32() + n, whole.gradients.f32())) << cut;
  }
  for (const StepState& another :
       {StepState{.seed = 4, .step = 5, .first_token = 64}, StepState{.seed = 3, .step = 6, .first_token = 64},
        StepState{.seed = 3, .step = 5, .first_token = 65}}) {
    RoundGradients<Tensor> op = whole;
    op.state = memory.object(another);
    op.gradients = memory.zeros({n});
    cpu::run(op, one);
    EXPECT_FALSE(std::equal(op.gradients.f32(), op.gradients.f32() + n, whole.gradients.f32()));
  }
}

}  // namespace
}  // namespace redline::optim
