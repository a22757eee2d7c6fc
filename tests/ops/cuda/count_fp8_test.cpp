// Counts in eight bits on the card are the CPU's, whatever the codes and however many there are.
#include "base/small_floats.h"
#include "ops/cuda/both_backends.h"

namespace redline::ops {
namespace {

class CudaCountFp8Test : public OnCard<::testing::TestWithParam<Shape>> {};

TEST_P(CudaCountFp8Test, AgreesWithTheCpu) {
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    for (const int kinds : {256, 0x7B, 1}) {  // all codes, finite and positive ones, zeros alone
      Memory memory;
      const Tensor copy = memory.array(dtype, GetParam());
      const Random random(5, static_cast<std::uint64_t>(kinds));
      for (std::int64_t i = 0; i < copy.elements(); ++i)
        copy.as<std::uint8_t>()[i] =
            static_cast<std::uint8_t>(random.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(kinds)));
      const Tensor count = memory.object(Fp8Count{.saturated = 1, .zeros = 2, .not_finite = 3, .largest = 4});
      const CountFp8<Tensor> op{copy, count};
      const CardOp<CountFp8<Tensor>> on_card(card(), op, DType::f32, 0);
      cpu::run(op, *all_pools().back());
      cuda::run(on_card.op(), card().launch());
      const Bytes codes = on_card.bytes(on_card.operands()[0]), found = on_card.bytes(on_card.operands()[1]);
      EXPECT_EQ(std::memcmp(found.data(), count.data, sizeof(Fp8Count)), 0)
          << name_of(dtype) << ", " << kinds << " kinds of codes";
      EXPECT_EQ(std::memcmp(codes.data(), copy.data, codes.size()), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCountFp8Test,
                         ::testing::Values(Shape{16}, Shape{1, 48}, Shape{16, 512}, Shape{1000, 4096},
                                           Shape{4096, 8192}));

}  // namespace
}  // namespace redline::ops
