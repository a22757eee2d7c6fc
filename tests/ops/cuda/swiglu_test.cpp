// SwiGLU and GeGLU on the card; its gradient in place too, and where exp overflows; both cast to eight bits.
#include "ops/cuda/fp8_check.h"

namespace redline::ops {
namespace {

struct SwiGluCase {
  std::int64_t n, f;
};
class CudaSwiGluTest : public OnCard<::testing::TestWithParam<SwiGluCase>> {};

TEST_P(CudaSwiGluTest, AgreesWithTheCpu) {
  const auto [n, f] = GetParam();
  Memory memory;
  const Tensor dy = memory.uniform({n, f});
  for (const Gate gate : {Gate::silu, Gate::gelu_tanh}) {
    const Tensor gate_up = memory.uniform({n, 2 * f}, -8, 8);
    expect_agreement(card(), SwiGlu<Tensor>{gate_up, memory.zeros({n, f}), {}, gate});
    expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, memory.zeros({n, 2 * f}), {}, gate});
    expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, gate_up, {}, gate});
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSwiGluTest,
                         ::testing::Values(SwiGluCase{1, 1}, SwiGluCase{3, 7}, SwiGluCase{64, 24}, SwiGluCase{33, 704},
                                           SwiGluCase{129, 2752}, SwiGluCase{1, 6144}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaSwiGluTest, ::testing::ValuesIn(random_cases<SwiGluCase>(6, [](auto draw) {
                           const std::int64_t n = draw(500);
                           return SwiGluCase{n, draw(3000)};
                         })));

class CudaSwiGlu : public OnCard<> {};

TEST_F(CudaSwiGlu, HoldsWithLargeGates) {
  Memory memory;
  const Tensor gate_up = memory.uniform({9, 128}, -300, 300), dy = memory.uniform({9, 64});
  for (const Gate gate : {Gate::silu, Gate::gelu_tanh}) {
    expect_agreement(card(), SwiGlu<Tensor>{gate_up, memory.zeros({9, 64}), {}, gate});
    expect_agreement(card(), SwiGluGrad<Tensor>{gate_up, dy, memory.zeros({9, 128}), {}, gate});
  }
}

class CudaSwiGluFp8Test : public OnCard<::testing::TestWithParam<SwiGluCase>> {};

TEST_P(CudaSwiGluFp8Test, GivesTheBytesOfQuantize) {
  const auto [n, f] = GetParam();
  Memory memory;
  const Tensor gate_up = memory.uniform({n, 2 * f}, -8, 8), dy = memory.uniform({n, f});
  SwiGlu<Tensor> forward{gate_up, memory.zeros({n, f})};
  SwiGluGrad<Tensor> backward{gate_up, dy, memory.zeros({n, 2 * f})};
  if (f % 32 == 0) forward.gate = backward.gate = Gate::gelu_tanh;
  for (Fp8Ask ask : kRowsColumnsOrBlocks) {
    if (ask.columns && n % 16 != 0) continue;
    for (const bool keeps : {false, true}) {
      const auto expect = [&] {
        expect_bytes_of_quantize(card(), memory, forward, &SwiGlu<Tensor>::y, keeps, ask);
        expect_bytes_of_quantize(card(), memory, backward, &SwiGluGrad<Tensor>::dgate_up, keeps, ask);
      };
      expect();                                                        // some are too large for e4m3
      ask.dtype = DType::e5m2, ask.scale = 0x1p-14f, ask.amax = 1e6f;  // others lose all but zero
      expect();
      ask.dtype = DType::e4m3, ask.scale = 0x1p-3f, ask.records = false;
      expect();
      ask.scale = 32, ask.records = true, ask.amax = 0;
    }
  }
}

TEST_P(CudaSwiGluFp8Test, MayBeInPlace) {
  const auto [n, f] = GetParam();
  Memory memory;
  const Tensor gate_up = memory.uniform({n, 2 * f}, -8, 8), dy = memory.uniform({n, f});
  const Fp8Ask ask{.rows = true, .columns = n % 16 == 0, .dtype = DType::e5m2, .scale = 0x1p12f};
  const auto left = [&](const Tensor& dgate_up) {
    std::map<std::string, Bytes> bytes;
    CardOp<SwiGluGrad<Tensor>> op(card(), {gate_up, dy, dgate_up, copies_of(memory, ask, n, 2 * f)}, DType::bf16, 0);
    cuda::run(op.op(), card().launch());
    for (const NamedOperand& o : op.operands())
      if (o.access != Access::read) bytes[o.name] = op.bytes(o);
    return bytes;
  };
  EXPECT_TRUE(left(gate_up) == left(memory.zeros({n, 2 * f}))) << n << " x " << f;
}

// Among them: less than a tile, tiles that end within one, warps past the end, and rows that only rows can be made of.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaSwiGluFp8Test,
                         ::testing::Values(SwiGluCase{16, 16}, SwiGluCase{48, 80}, SwiGluCase{128, 64},
                                           SwiGluCase{144, 176}, SwiGluCase{1040, 704}, SwiGluCase{16, 2752},
                                           SwiGluCase{2048, 48}, SwiGluCase{1, 64}, SwiGluCase{131, 208}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaSwiGluFp8Test,
                         ::testing::ValuesIn(random_cases<SwiGluCase>(6, [](auto draw) {
                           const std::int64_t n = 16 * draw(40);
                           return SwiGluCase{n, 16 * draw(180)};
                         })));

TEST_F(CudaSwiGlu, CastsWhatIsNotFinite) {
  Memory memory;
  const Tensor gate_up = memory.uniform({32, 96}, -300, 300), dy = memory.uniform({32, 48});
  gate_up.f32()[5] = std::numeric_limits<float>::infinity();
  gate_up.f32()[48 + 7] = std::numeric_limits<float>::quiet_NaN();
  const Fp8Ask ask{.rows = true, .columns = true};
  expect_bytes_of_quantize(card(), memory, SwiGlu<Tensor>{gate_up, memory.zeros({32, 48})}, &SwiGlu<Tensor>::y, true,
                           ask);
  expect_bytes_of_quantize(card(), memory, SwiGluGrad<Tensor>{gate_up, dy, memory.zeros({32, 96})},
                           &SwiGluGrad<Tensor>::dgate_up, true, ask);
}

}  // namespace
}  // namespace redline::ops
