// Dropout: the mask word by word as the contract states it, in place, and the share that is kept.
#include "base/step_state.h"
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

TEST(Dropout, DrawsTheStatedWords) {
  const StepState state{.seed = 77, .step = 12, .first_token = 1000};
  for (const auto& [n, d] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {129, 64}, {5, 1023}}) {
    for (float p : {0.0f, 0.1f, 0.5f, 1.0f}) {
      Memory memory;
      const Tensor x = memory.uniform({n, d}, 1, 2), y = memory.zeros({n, d});
      run_checked(memory, Dropout<Tensor>{x, memory.object(state), y, p, 5});
      const Random random(77, (std::uint64_t{5} << 40) + 12);
      for (std::int64_t t = 0; t < n; ++t) {
        for (std::int64_t e = 0; e < d; ++e) {
          const auto words = random.words(static_cast<std::uint64_t>((1000 + t) * ((d + 7) / 8) + e / 8));
          const std::uint32_t bits = words[static_cast<std::size_t>(e % 8 / 2)] >> (e % 2 * 16) & 0xFFFF;
          const float want = bits >= std::lround(p * 65536) ? x.f32()[t * d + e] / (1 - p) : 0.0f;
          ASSERT_NEAR(y.f32()[t * d + e], want, 1e-4f) << "token " << t << ", element " << e << ", p " << p;
        }
      }
    }
  }
}

TEST(Dropout, WorksInPlaceAndKeepsTheStatedShare) {
  Memory memory;
  const Tensor x = memory.uniform({500, 200}, 1, 1), y = memory.zeros({500, 200}), state = memory.object(StepState{});
  run_checked(memory, Dropout<Tensor>{x, state, y, 0.25f, 1});
  run_checked(memory, Dropout<Tensor>{x, state, x, 0.25f, 1});
  EXPECT_EQ(values_of(x), values_of(y));
  double kept = 0;
  for (double v : values_of(y)) kept += v > 0;
  EXPECT_NEAR(kept / 1e5, 0.75, 0.01);
}

}  // namespace
}  // namespace redline::ops
