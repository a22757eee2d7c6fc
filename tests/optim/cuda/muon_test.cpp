// Muon around its products on the card: the CPU's numbers for matrices anywhere, and nothing touched where a step is
// left out.
#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "optim/cuda/kernels.h"
#include "optim/muon_matrices.h"
#include "testing/card_check.h"

namespace redline::optim {
namespace {

using namespace redline::testing;

const StepState kState{.lr = 0.01f, .momentum = 0.9f};
const UpdateResult kFinite{.grad_norm = 1, .grad_scale = 0.125f, .finite = 1};

class CudaMuon : public OnCard<> {};

TEST_F(CudaMuon, MomentumIsTheCpus) {
  for (const Matrices& m : kMatrices) {
    Memory memory;
    expect_agreement(card(), momentum_of(memory, m, kState, kFinite), {.f32 = 1e-6, .bf16 = 4e-3});
  }
}

TEST_F(CudaMuon, UpdateIsTheCpus) {
  for (const Matrices& m : kMatrices)
    for (const bool cautious : {false, true})
      for (const float beta2 : {0.0f, 0.9f}) {
        const MuonSettings settings{.weight_decay = 0.3f, .beta2 = beta2, .cautious = cautious};
        Memory memory;
        expect_agreement(card(), update_of(memory, m, kState, kFinite, settings, false), {.f32 = 1e-6, .bf16 = 1e-6});
        // Copies are in bf16 on a card.
        const auto values = expect_agreement(card(), update_of(memory, m, kState, kFinite, settings, true),
                                             {.bf16 = 4e-3, .types = {DType::bf16}});
        for (const auto& run : values)
          for (std::int64_t i = 0; i < m.count; ++i)
            for (std::int64_t j = m.flat.at(i); j < m.flat.at(i) + m.elements(); ++j) {
              const auto at = static_cast<std::size_t>(j);
              const auto parameter = static_cast<float>(run.at("parameters")[at]);
              ASSERT_EQ(run.at("working")[at], static_cast<double>(from_bf16(to_bf16(parameter))));
            }
      }
}

TEST_F(CudaMuon, ZerosStayZero) {
  Memory memory;
  const MuonMomentum<Tensor> op = momentum_of(memory, kMatrices[1], kState, kFinite);
  std::fill_n(op.gradients.f32(), op.gradients.elements(), 0.0f);
  std::fill_n(op.momentum.f32(), op.momentum.elements(), 0.0f);
  for (const auto& run : expect_agreement(card(), op))
    for (const double value : run.at("x")) ASSERT_EQ(value, 0);
}

TEST_F(CudaMuon, TouchesNothingWhenNotFinite) {
  const UpdateResult skipped{.grad_scale = 0, .finite = 0};
  for (const Matrices& m : kMatrices) {
    Memory memory;
    const MuonMomentum<Tensor> momentum = momentum_of(memory, m, kState, skipped);
    momentum.gradients.f32()[0] = std::numeric_limits<float>::quiet_NaN();
    const CardOp<MuonMomentum<Tensor>> first(card(), momentum, DType::bf16, 0);
    cuda::run(first.op(), card().launch());
    for (const NamedOperand& o : first.operands()) {
      if (o.name == "momentum") {
        EXPECT_EQ(first.bytes(o), first.initial(o));
      }
      if (o.name != "x") continue;
      for (const double value : first.values(o)) ASSERT_EQ(value, 0);
    }
    const Muon<Tensor> update = update_of(memory, m, kState, skipped, {.beta2 = 0.9f}, true);
    update.x.f32()[0] = std::numeric_limits<float>::quiet_NaN();
    const CardOp<Muon<Tensor>> second(card(), update, DType::bf16, 0);
    cuda::run(second.op(), card().launch());
    for (const NamedOperand& o : second.operands())
      EXPECT_TRUE(o.access != Access::update || second.bytes(o) == second.initial(o)) << o.name;
  }
}

// A shard that begins within a group, and within a vector.
TEST_F(CudaMuon, TotalsOfAShardThatMovedAreItsPartsOfGroups) {
  const std::int64_t n = 400'000;
  for (const std::int64_t begin : {0, 131'080, 131'085}) {
    Memory memory;
    const SumSquares<Tensor> sum{memory.uniform({200'003}, -3, 3),
                                 memory.object(1.0),
                                 memory.object(StepState{.counts = {.pairs = 3}}),
                                 memory.doubles(kTotals),
                                 begin,
                                 n};
    expect_agreement(card(), sum, {.types = {DType::f32}});
  }
}

}  // namespace
}  // namespace redline::optim
