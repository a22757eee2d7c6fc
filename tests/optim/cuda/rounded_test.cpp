// Rounding at random on the card: the CPU's bits, for any place in the array and any alignment.
#include "optim/rounded.h"

#include "base/small_floats.h"
#include "optim/cpu/kernels.h"
#include "optim/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

class CudaRoundedTest : public OnCard<::testing::TestWithParam<std::int64_t>> {};

template <class Op>
Bytes bytes_of(const CardOp<Op>& on_card, std::string_view name) {
  for (const NamedOperand& o : on_card.operands())
    if (o.name == name) return on_card.bytes(o);
  return {};
}

TEST_P(CudaRoundedTest, AreTheCpus) {
  const std::int64_t n = GetParam();
  for (const std::int64_t begin : {0, 8, 301})
    for (const std::int64_t shift : {0, 1})
      for (const auto& [accumulate, kind] :
           {std::pair{false, Rounded::gradients}, {true, Rounded::gradients}, {false, Rounded::masters}}) {
        Memory memory;
        RoundAtRandom<Tensor> op{.x = memory.uniform({n}, -1, 1),
                                 .state = memory.object(StepState{.seed = 11, .step = 6, .first_token = 4096}),
                                 .kept = memory.array(DType::bf16, {n}),
                                 .begin = begin,
                                 .all = 1'000'000,
                                 .accumulate = accumulate,
                                 .what = kind};
        const Tensor wide = memory.uniform({n}, -3, 3);
        for (std::int64_t i = 0; i < n; ++i) {
          op.kept.as<std::uint16_t>()[i] = bf16_from_f32(wide.f32()[i]);
          wide.f32()[i] = f32_from_bf16(op.kept.as<std::uint16_t>()[i]);
        }
        const CardOp<RoundAtRandom<Tensor>> on_card(card(), op, DType::f32, shift);
        cuda::run(on_card.op(), card().launch());
        const Bytes got = bytes_of(on_card, "kept");
        const Widen<Tensor> back{op.kept, memory.zeros({n})};
        const CardOp<Widen<Tensor>> back_on_card(card(), back, DType::f32, shift);
        cuda::run(back_on_card.op(), card().launch());
        const Bytes got_wide = bytes_of(back_on_card, "x");
        const std::string what =
            fmt::format("{} from {} on, shift {}, {}, kind {}", n, begin, shift, accumulate, static_cast<int>(kind));
        ASSERT_EQ(got_wide.size(), static_cast<std::size_t>(4 * n));
        EXPECT_EQ(std::memcmp(got_wide.data(), wide.data, got_wide.size()), 0) << what;
        op.kept = wide;
        ThreadPool pool(1);
        cpu::run(op, pool);
        std::vector<std::uint16_t> want;
        for (std::int64_t i = 0; i < n; ++i) want.push_back(bf16_from_f32(wide.f32()[i]));
        ASSERT_EQ(got.size(), static_cast<std::size_t>(2 * n));
        EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << what;
      }
}
INSTANTIATE_TEST_SUITE_P(Sizes, CudaRoundedTest, ::testing::Values(1, 7, 8, 9, 4096, 100'003));

}  // namespace
}  // namespace redline::optim
