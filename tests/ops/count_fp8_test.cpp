// Counts in eight bits: every code of both formats is what it is, and counts add to what was there.
#include "base/small_floats.h"
#include "ops/cpu/kernels.h"
#include "ops/fp8.h"
#include "testing/op_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

TEST(CountFp8, KnowsEveryCode) {
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    Memory memory;
    const Tensor copy = memory.array(dtype, {256, 16});
    std::uint64_t not_finite = 0;
    for (int code = 0; code < 256; ++code) {
      for (int i = 0; i < 16; ++i) copy.as<std::uint8_t>()[16 * code + i] = static_cast<std::uint8_t>(code);
      not_finite += std::isfinite(f32_from_fp8(static_cast<std::uint8_t>(code), fp8_format(dtype))) ? 0 : 16;
    }
    const Tensor count = memory.object(Fp8Count{.saturated = 1, .zeros = 2, .not_finite = 3, .largest = 4});
    run_checked(memory, CountFp8<Tensor>{copy, count}, [](const auto& op, ThreadPool& pool) { cpu::run(op, pool); });
    const auto& found = *count.as<Fp8Count>();
    EXPECT_EQ(found.saturated, 1u + 32u) << "of either sign";
    EXPECT_EQ(found.zeros, 2u + 32u);
    EXPECT_EQ(found.not_finite, 3u + not_finite);
    EXPECT_EQ(found.largest, 0x7Fu);
  }
}

TEST(CountFp8, TheLargestIsThatOfTheCopy) {
  Memory memory;
  const Tensor copy = memory.array(DType::e4m3, {16});
  copy.as<std::uint8_t>()[5] = fp8_from_f32(-3.5f, kE4m3);
  copy.as<std::uint8_t>()[15] = fp8_from_f32(3.25f, kE4m3);
  const Tensor count = memory.object(Fp8Count{});
  run_checked(memory, CountFp8<Tensor>{copy, count}, [](const auto& op, ThreadPool& pool) { cpu::run(op, pool); });
  const auto& found = *count.as<Fp8Count>();
  EXPECT_EQ(f32_from_fp8(static_cast<std::uint8_t>(found.largest), kE4m3), 3.5f);
  EXPECT_EQ(found.zeros, 14u);
  EXPECT_EQ(found.saturated + found.not_finite, 0u);
}

}  // namespace
}  // namespace redline::ops
