// The update on the card, its norms and the average of weights: the CPU's numbers, working copies that are the
// parameters rounded, and nothing touched when norm or loss are not finite.
#include "base/small_floats.h"
#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "optim/cuda/kernels.h"
#include "testing/card_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

const Agreement kFloat{.types = {DType::f32}};

class CudaOptimTest : public OnCard<::testing::TestWithParam<std::int64_t>> {};

// Both nodes of a norm over all gradients, on the card.
struct NormOnCard {
  NormOnCard(device::CudaDevice& card, SumSquares<Tensor> sum, const GradNorm<Tensor>& norm) {
    sum.all = sum.gradients.elements();
    const CardOp<SumSquares<Tensor>> squares(card, sum, DType::f32, 0);
    const CardOp<GradNorm<Tensor>> finish(card, norm, DType::f32, 0);
    GradNorm<Tensor> bound = finish.op();
    bound.totals = squares.op().totals;
    cuda::run(squares.op(), card.launch());
    cuda::run(bound, card.launch());
    for (const NamedOperand& o : finish.operands()) {
      if (o.name == "result") std::memcpy(&result, finish.bytes(o).data(), sizeof(result));
      if (o.name == "usual") std::memcpy(&usual, finish.bytes(o).data(), sizeof usual);
    }
  }
  UpdateResult result;
  UsualNorm usual;
};

UpdateResult norm_on_cpu(const SumSquares<Tensor>& given, const GradNorm<Tensor>& norm) {
  SumSquares<Tensor> sum = given;
  sum.all = sum.gradients.elements();
  ThreadPool pool(1);
  cpu::run(sum, pool);
  cpu::run(norm, pool);
  return *norm.result.as<UpdateResult>();
}

TEST_P(CudaOptimTest, GradNormIsTheCpus) {
  const std::int64_t n = GetParam();
  for (float clip : {0.0f, 0.5f, 1e6f}) {
    for (std::int64_t shift : {0, 1}) {
      Memory memory;
      const Tensor totals = memory.doubles(kTotals);
      SumSquares<Tensor> sum{memory.uniform({n + shift}, -30, 30), memory.object(12.5),
                             memory.object(StepState{.counts = {.pairs = 100, .stop = 1}}), totals};
      const GradNorm<Tensor> norm{totals, memory.object(UpdateResult{}), clip};
      const UpdateResult got = NormOnCard(card(), sum, norm).result, want = norm_on_cpu(sum, norm);
      EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-6f * want.grad_norm);
      EXPECT_NEAR(got.grad_scale, want.grad_scale, 1e-6f * want.grad_scale);
      EXPECT_EQ(got.finite, 1.0f);
      EXPECT_EQ(got.loss_sum, 12.5);
      EXPECT_EQ(got.counts.pairs, 100);
      EXPECT_EQ(got.counts.stop, 1);
    }
  }
}

TEST_P(CudaOptimTest, GradNormOfNoPairsIsZero) {
  Memory memory;
  const Tensor totals = memory.doubles(kTotals);
  const SumSquares<Tensor> sum{memory.uniform({GetParam()}, 0, 0), memory.object(0.0),
                               memory.object(StepState{.counts = {.pairs = 0}}), totals};
  const UpdateResult got = NormOnCard(card(), sum, {totals, memory.object(UpdateResult{}), 1.0f}).result;
  EXPECT_EQ(got.grad_norm, 0.0f);
  EXPECT_EQ(got.grad_scale, 0.0f);
  EXPECT_EQ(got.finite, 1.0f);
}

TEST_P(CudaOptimTest, TotalsOfAShardAreItsGroups) {
  const std::int64_t n = 3 * GetParam() + 5000;
  const Shards shards{n, 3};
  for (int rank = 0; rank < 3; ++rank) {
    Memory memory;
    const std::int64_t begin = shards.begin(rank);
    const SumSquares<Tensor> sum{memory.uniform({shards.end(rank) - begin}, -3, 3),
                                 memory.object(1.0),
                                 memory.object(StepState{.counts = {.pairs = 3}}),
                                 memory.doubles(kTotals),
                                 begin,
                                 n};
    expect_agreement(card(), sum, kFloat);
    SumSquares<Tensor> rest = sum;  // whose totals other pieces have begun
    rest.more = true;
    rest.totals.as<double>()[kCutGroups / 2] = 4.5;
    expect_agreement(card(), rest, kFloat);
  }
}

TEST_P(CudaOptimTest, WhatIsUsualIsTheCpus) {
  const std::int64_t n = GetParam();
  for (const float count : {0.0f, 19.0f, 20.0f, 64.0f})
    for (const float spike : {1e-6f, 1e6f}) {
      Memory memory;
      const Tensor totals = memory.doubles(kTotals);
      const SumSquares<Tensor> sum{memory.uniform({n}, 1, 30), memory.object(12.5),
                                   memory.object(StepState{.counts = {.pairs = 100}}), totals};
      const GradNorm<Tensor> norm{totals, memory.object(UpdateResult{}), 1.0f,
                                  memory.object(UsualNorm{.mean_log = 1.5f, .count = count}), spike};
      const NormOnCard got(card(), sum, norm);
      const UpdateResult want = norm_on_cpu(sum, norm);
      EXPECT_EQ(got.result.finite, want.finite);
      EXPECT_EQ(got.result.finite, count >= kUsualLeast && spike < 1 ? 0.0f : 1.0f);
      EXPECT_NEAR(got.result.limit, want.limit, 1e-6f * want.limit);
      EXPECT_NEAR(got.result.grad_scale, want.grad_scale, 1e-6f * want.grad_scale);
      EXPECT_EQ(got.usual.count, norm.usual.as<UsualNorm>()->count);
      EXPECT_NEAR(got.usual.mean_log, norm.usual.as<UsualNorm>()->mean_log, 1e-5f);
    }
}

// The CPU keeps a working copy in fp32, the card in bf16; with one or without, parameters and moments have the same
// bits.
TEST_P(CudaOptimTest, AdamWIsTheCpus) {
  const std::int64_t n = GetParam();
  const Agreement with_copies{.bf16 = 4e-3, .types = {DType::bf16}};  // what rounding to bf16 costs
  for (float decay : {0.0f, 0.2f}) {
    std::vector<std::map<std::string, Values>> without;
    for (bool with_working : {false, true}) {
      Memory memory;
      const StepState state{.lr = 0.01f, .correction1 = 0.19f, .correction2 = 0.0975f, .weight_decay_share = 0.75f};
      const UpdateResult result{.grad_norm = 3, .grad_scale = 0.05f, .finite = 1};
      const AdamW<Tensor> op{memory.uniform({n}),
                             memory.uniform({n}, -5, 5),
                             memory.uniform({n}),
                             memory.uniform({n}, 0, 1),
                             with_working ? memory.zeros({n}) : Tensor{},
                             memory.object(state),
                             memory.object(result),
                             {.weight_decay = decay}};
      const auto values = expect_agreement(card(), op, with_working ? with_copies : kFloat);
      if (!with_working) {
        without = values;
        continue;
      }
      for (std::size_t run = 0; run < values.size(); ++run) {
        for (const char* array : {"parameters", "moment1", "moment2"})
          EXPECT_TRUE(values[run].at(array) == without[run].at(array)) << array;
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          const auto parameter = static_cast<float>(values[run].at("parameters")[i]);
          ASSERT_EQ(values[run].at("working")[i], static_cast<double>(from_bf16(to_bf16(parameter))));
        }
      }
    }
  }
}

TEST_P(CudaOptimTest, RefreshRounds) {
  const std::int64_t n = GetParam();
  for (std::int64_t shift : {0, 1}) {
    Memory memory;
    const Tensor parameters = memory.uniform({n}, -3, 3);
    const CardOp<Refresh<Tensor>> on_card(card(), {parameters, memory.array(DType::bf16, {n})}, DType::f32, shift);
    cuda::run(on_card.op(), card().launch());
    const Values working = on_card.values(on_card.operands().back());
    for (std::int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(working[static_cast<std::size_t>(i)], static_cast<double>(from_bf16(to_bf16(parameters.f32()[i]))));
    }
  }
}

TEST_P(CudaOptimTest, AverageIsTheCpus) {
  const std::int64_t n = GetParam();
  for (const float finite : {1.0f, 0.0f})
    for (const float share : {1.0f, 0.01f}) {
      Memory memory;
      expect_agreement(
          card(),
          Average<Tensor>{memory.uniform({n}), memory.uniform({n}), memory.object(StepState{.average = share}),
                          memory.object(UpdateResult{.finite = finite})},
          kFloat);
    }
}

TEST_P(CudaOptimTest, ExchangeIsTheCpus) {
  Memory memory;
  const std::int64_t n = GetParam();
  Agreement exactly = kFloat;
  exactly.f32 = 0;
  expect_agreement(card(), Exchange<Tensor>{memory.uniform({n}), memory.uniform({n})}, exactly);
}

TEST_P(CudaOptimTest, ACopyInFp32IsExact) {
  Memory memory;
  const std::int64_t n = GetParam();
  Agreement exactly = kFloat;
  exactly.f32 = 0;
  expect_agreement(card(), Refresh<Tensor>{memory.uniform({n}), memory.zeros({n})}, exactly);
}

TEST_P(CudaOptimTest, SumsByTensorAreTheCpus) {
  const std::int64_t n = GetParam(), third = n / 3 / 4 * 4;
  const std::vector<std::int64_t> bounds = {0, third, third, n, 0, 0, third, third + (n - third) / 2};
  const auto tensors = static_cast<std::int64_t>(bounds.size() / 2);
  for (const bool difference : {false, true}) {
    Memory memory;
    const Tensor where = memory.array(DType::i64, {tensors, 2});
    std::memcpy(where.data, bounds.data(), static_cast<std::size_t>(where.bytes()));
    expect_agreement(
        card(),
        TensorSums<Tensor>{memory.uniform({n}, -3, 3), difference ? memory.uniform({n}, -3, 3) : Tensor{}, where,
                           memory.doubles(tensors), memory.array(DType::f64, {tensors, kTensorSlices})},
        Agreement{.f32 = 1e-12, .types = {DType::f32}});
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaOptimTest, ::testing::Values(1, 3, 8, 1000, 4099, 300007));
INSTANTIATE_TEST_SUITE_P(RandomSizes, CudaOptimTest,
                         ::testing::ValuesIn(random_cases<std::int64_t>(4, [](auto draw) { return draw(50000); })));

class CudaOptim : public OnCard<> {};

// Gradients that come in pieces of whole groups, which are cut into slices or are not.
TEST_F(CudaOptim, TotalsOfPiecesAreThoseOfAllToTheBit) {
  for (const std::int64_t n : {1000, 300'007, 1 << 20})
    for (const std::int64_t slices : {0, 3, 32}) {
      Memory memory;
      const Tensor gradients = memory.uniform({n}, -3, 3), totals = memory.doubles(kTotals);
      SumSquares<Tensor> sum{gradients, memory.object(2.5), memory.object(StepState{.counts = {.pairs = 7}}), totals, 0,
                             n};
      if (slices > 0) {
        sum.partial = memory.doubles(kCutGroups * slices);
        sum.partial.shape = {kCutGroups, slices};
      }
      expect_agreement(card(), sum, kFloat);
      const auto totals_of = [&](const SumSquares<Tensor>& op) {
        const CardOp<SumSquares<Tensor>> on_card(card(), op, DType::f32, 0);
        cuda::run(on_card.op(), card().launch());
        for (const NamedOperand& o : on_card.operands())
          if (o.name == "totals") return on_card.bytes(o);
        return Bytes{};
      };
      const Bytes whole = totals_of(sum);
      std::fill_n(totals.as<double>(), kTotals, 1e9);  // left from a step before
      const std::int64_t cuts[] = {0, group_begin(100, n), group_begin(101, n), group_begin(900, n), n};
      for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
        if (cuts[i] == cuts[i + 1]) continue;
        sum.gradients = {gradients.f32() + cuts[i], DType::f32, {cuts[i + 1] - cuts[i]}};
        sum.begin = cuts[i];
        sum.more = cuts[i] > 0;
        const Bytes now = totals_of(sum);
        std::memcpy(totals.data, now.data(), now.size());
      }
      EXPECT_EQ(std::memcmp(totals.data, whole.data(), whole.size()), 0) << n << ' ' << slices;
    }
}

TEST_F(CudaOptim, ANormOrLossThatIsNotFiniteStopsTheUpdate) {
  Memory memory;
  const Tensor gradients = memory.uniform({5000}), loss = memory.object(1.0);
  const Tensor totals = memory.doubles(kTotals);
  const SumSquares<Tensor> sum{gradients, loss, memory.object(StepState{.counts = {.pairs = 1}}), totals};
  GradNorm<Tensor> norm{totals, memory.object(UpdateResult{}), 1.0f};
  const auto on_card = [&] { return NormOnCard(card(), sum, norm).result; };
  EXPECT_EQ(on_card().finite, 1.0f);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const float kept = std::exchange(gradients.f32()[4999], bad);
    const UpdateResult of_gradient = on_card();
    gradients.f32()[4999] = kept;
    *loss.as<double>() = static_cast<double>(bad);
    const UpdateResult of_loss = on_card();
    *loss.as<double>() = 1.0;
    for (const UpdateResult& r : {of_gradient, of_loss}) {
      EXPECT_EQ(r.finite, 0.0f);
      EXPECT_EQ(r.grad_scale, 0.0f);
    }
  }

  norm.usual = memory.object(UsualNorm{.mean_log = 2, .count = 20});
  norm.spike = 1e-3f;
  EXPECT_EQ(on_card().finite, 0.0f) << "a norm above its limit";

  const AdamW<Tensor> update{memory.uniform({1001}),
                             memory.uniform({1001}),
                             memory.uniform({1001}),
                             memory.uniform({1001}),
                             memory.array(DType::bf16, {1001}),
                             memory.object(StepState{.lr = 1}),
                             memory.object(UpdateResult{.grad_scale = 1, .finite = 0}),
                             {}};
  const CardOp<AdamW<Tensor>> updated(card(), update, DType::f32, 0);
  cuda::run(updated.op(), card().launch());
  for (const NamedOperand& o : updated.operands()) {
    if (o.name != "working") {
      EXPECT_EQ(updated.bytes(o), updated.initial(o)) << o.name;
      continue;
    }
    Bytes copies(1001 * sizeof(std::uint16_t));  // of parameters that did not move: whoever reads them finds them there
    for (std::size_t i = 0; i < 1001; ++i) {
      const std::uint16_t copy = bf16_from_f32(update.parameters.f32()[i]);
      std::memcpy(copies.data() + i * sizeof copy, &copy, sizeof copy);
    }
    EXPECT_EQ(updated.bytes(o), copies);
  }
}

}  // namespace
}  // namespace redline::optim
