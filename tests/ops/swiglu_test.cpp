// SwiGLU and GeGLU and their gradients, apart and in place.
#include <numbers>

#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

Values reference(const Values& gate_up, std::size_t f, Gate gate) {
  Values y;
  for (std::size_t i = 0; i < gate_up.size(); i += 2 * f) {
    for (std::size_t j = 0; j < f; ++j) {
      const double g = gate_up[i + j];
      const double act = gate == Gate::silu
                             ? g / (1 + std::exp(-g))
                             : 0.5 * g * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g)));
      y.push_back(act * gate_up[i + f + j]);
    }
  }
  return y;
}

struct SwiGluCase {
  std::int64_t n, f;
};
class SwiGluTest : public ::testing::TestWithParam<SwiGluCase> {};

TEST_P(SwiGluTest, MatchesTheReferenceAndItsSlopes) {
  const auto [n, f] = GetParam();
  for (const Gate gate : {Gate::silu, Gate::gelu_tanh}) {
    Memory memory;
    const Tensor gate_up = memory.uniform({n, 2 * f}, -9, 9), y = memory.zeros({n, f}), dy = memory.uniform({n, f});
    Values in = values_of(gate_up);
    const Values upstream = values_of(dy);
    run_checked(memory, SwiGlu<Tensor>{gate_up, y, {}, gate});
    expect_close("y", y, reference(in, static_cast<std::size_t>(f), gate), 1e-6);

    const Tensor apart = memory.zeros({n, 2 * f});
    run_checked(memory, SwiGluGrad<Tensor>{gate_up, dy, apart, {}, gate});
    expect_gradient(
        "dgate_up", apart, in, [&] { return dot(reference(in, static_cast<std::size_t>(f), gate), upstream); }, 3e-5);
    run_checked(memory, SwiGluGrad<Tensor>{gate_up, dy, gate_up, {}, gate});
    EXPECT_EQ(values_of(gate_up), values_of(apart)) << "in place";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SwiGluTest,
                         ::testing::Values(SwiGluCase{1, 1}, SwiGluCase{1, 704}, SwiGluCase{37, 19},
                                           SwiGluCase{300, 65}));

TEST(SwiGlu, SaturatesWithoutNan) {
  Memory memory;
  const Tensor gate_up = memory.zeros({2, 2}), y = memory.zeros({2, 1});
  gate_up.f32()[0] = -200;
  gate_up.f32()[1] = 1;
  gate_up.f32()[2] = 200;
  gate_up.f32()[3] = 1;
  for (const Gate gate : {Gate::silu, Gate::gelu_tanh}) {
    run_checked(memory, SwiGlu<Tensor>{gate_up, y, {}, gate});
    EXPECT_EQ(y.f32()[0], 0.0f);
    EXPECT_EQ(y.f32()[1], 200.0f);
  }
}

}  // namespace
}  // namespace redline::ops
