// Dropout on the card draws exactly the CPU's mask.
#include "base/step_state.h"
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct DropoutCase {
  std::int64_t n, d;
  float p;
};
class CudaDropoutTest : public OnCard<::testing::TestWithParam<DropoutCase>> {};

TEST_P(CudaDropoutTest, DrawsTheMaskOfTheCpu) {
  const auto [n, d, p] = GetParam();
  for (bool in_place : {false, true}) {
    Memory memory;
    const StepState state{.seed = 0x123456789abcull, .step = 77, .first_token = (std::uint64_t{1} << 33) + 5};
    const Tensor x = memory.uniform({n, d}, 1, 2), y = in_place ? x : memory.zeros({n, d});
    const auto results =
        expect_agreement(card(), Dropout<Tensor>{x, memory.object(state), y, p, 12}, {.f32 = 0, .bf16 = 4e-3});
    const Values want = values_of(y);
    for (const auto& values : results) {
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(values.at("y")[i] == 0, want[i] == 0) << "element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaDropoutTest,
                         ::testing::Values(DropoutCase{1, 1, 0.5f}, DropoutCase{5, 7, 0.3f}, DropoutCase{65, 24, 0.1f},
                                           DropoutCase{300, 640, 0.1f}, DropoutCase{17, 129, 0.9f},
                                           DropoutCase{3, 20, 1.0f}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaDropoutTest, ::testing::ValuesIn(random_cases<DropoutCase>(6, [](auto draw) {
                           const std::int64_t n = draw(300), d = draw(900);
                           return DropoutCase{n, d, 0.001f * static_cast<float>(draw(990))};
                         })));

}  // namespace
}  // namespace redline::ops
