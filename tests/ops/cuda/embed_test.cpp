// Embedding on the card: rows copied to the bit, and added back in order however often a token repeats.
#include "testing/card_check.h"

namespace redline::ops {
namespace {

using namespace redline::testing;

struct EmbedCase {
  std::int64_t n, vocab, d;
};
class CudaEmbedTest : public OnCard<::testing::TestWithParam<EmbedCase>> {};

TEST_P(CudaEmbedTest, AgreesWithTheCpu) {
  const auto [n, vocab, d] = GetParam();
  Memory memory;
  const Tensor tokens = memory.integers(random_integers(n, vocab, 3)), weight = memory.uniform({vocab, d});
  expect_agreement(card(), Embed<Tensor>{tokens, weight, memory.zeros({n, d})}, {.f32 = 0, .bf16 = 0});
  Embed<Tensor> larger{tokens, weight, memory.zeros({n, d})};
  larger.scale = 33.9f;
  expect_agreement(card(), larger);
  const Tensor order = memory.array(DType::i32, {2, n});
  expect_agreement(card(), SortTokens<Tensor>{tokens, order, memory.array(DType::u8, {sort_bytes(n)}), vocab},
                   {.types = {DType::f32}, .shifts = {0}});
  for (bool accumulate : {false, true}) {
    const Tensor dy = memory.uniform({n, d}), dweight = memory.uniform({vocab, d});
    const Tensor pieces = memory.zeros({piece_rows(n, kEmbedChunk), d});
    const auto padding = static_cast<std::int32_t>(accumulate ? vocab / 2 : kNoPadding);
    EmbedGrad<Tensor> grad{tokens, dy, dweight, accumulate, padding, order, pieces};
    expect_agreement(card(), grad, {.bf16 = 1e-5});
    grad.scale = 33.9f;
    expect_agreement(card(), grad, {.bf16 = 1e-5});
  }
}

// From one token to runs over many chunks of the sorted order, with and without an end at a chunk's edge.
INSTANTIATE_TEST_SUITE_P(Shapes, CudaEmbedTest,
                         ::testing::Values(EmbedCase{1, 1, 1}, EmbedCase{1, 5, 7}, EmbedCase{64, 1, 8},
                                           EmbedCase{65, 1, 24}, EmbedCase{128, 2, 16}, EmbedCase{300, 3, 65},
                                           EmbedCase{257, 267, 96}, EmbedCase{5000, 2, 640}, EmbedCase{1000, 50, 200},
                                           EmbedCase{700, 5000, 1032}));
INSTANTIATE_TEST_SUITE_P(RandomShapes, CudaEmbedTest, ::testing::ValuesIn(random_cases<EmbedCase>(6, [](auto draw) {
                           const std::int64_t n = draw(3000), vocab = draw(900);
                           return EmbedCase{n, vocab, draw(600)};
                         })));

class CudaEmbed : public OnCard<> {};

TEST_F(CudaEmbed, TakesLongerChunksWhereThereIsRoomForFewPieces) {
  constexpr std::int64_t kRows = 20000, kColumns = 1024;
  Memory memory;
  ThreadPool pool(1);
  const Tensor tokens = memory.integers(random_integers(kRows, 7, 3)), dy = memory.uniform({kRows, kColumns});
  const Tensor order = memory.array(DType::i32, {2, kRows});
  cpu::run(SortTokens<Tensor>{tokens, order, {}, 7}, pool);
  const auto with = [&](std::int64_t rows) {
    return EmbedGrad<Tensor>{tokens,     dy,    memory.zeros({7, kColumns}),   false,
                             kNoPadding, order, memory.zeros({rows, kColumns})};
  };
  expect_agreement(card(), with(piece_rows(kRows, 256)), {.bf16 = 1e-5});
  const CardOp<EmbedGrad<Tensor>> on_card(card(), with(1), DType::f32, 0);
  EXPECT_THROW(cuda::run(on_card.op(), card().launch()), MachineError);
}

TEST_F(CudaEmbed, TheSortTakesNoMoreThanItsOperandHas) {
  for (const std::int64_t n : {1, 255, 4097, 100'000, 1 << 20, 3 << 20, 1 << 24}) {
    const auto tokens = card().allocate(4 * n), order = card().allocate(8 * n),
               temporary = card().allocate(sort_bytes(n));
    card().fill(tokens->data(), 0, tokens->bytes());
    const SortTokens<Tensor> op{{tokens->data(), DType::i32, {n}},
                                {order->data(), DType::i32, {2, n}},
                                {temporary->data(), DType::u8, {sort_bytes(n)}},
                                151936};
    EXPECT_NO_THROW(cuda::run(op, card().launch())) << n;
  }
}

}  // namespace
}  // namespace redline::ops
