// Heads with random operands for the tests of lm_loss on both backends.
#pragma once

#include "base/small_floats.h"
#include "ops/cpu/kernels.h"
#include "testing/op_check.h"

namespace redline::testing {

struct LmLossCase {
  std::int64_t n, d, vocab, chunk;
};

// Random targets, every fifth token without one.
inline std::vector<std::int64_t> targets_with_gaps(std::int64_t n, std::int64_t vocab) {
  std::vector<std::int64_t> ids = random_integers(n, vocab, 4);
  for (std::size_t i = 2; i < ids.size(); i += 5) ids[i] = i % 2 ? -1 : -100;
  return ids;
}

// What is written is zero before, and nothing is added to.
inline ops::LmLoss<Tensor> head(Memory& memory, const Tensor& x, const Tensor& weight,
                                const std::vector<std::int64_t>& targets, std::int64_t chunk) {
  return {x,
          weight,
          memory.integers(targets),
          memory.zeros({x.rows()}),
          memory.doubles(1),
          memory.zeros({chunk, weight.rows()}),
          memory.zeros(x.shape),
          memory.zeros(weight.shape),
          false,
          false};
}

// The operands of a head whose gradients are in eight bits: as the update and the final norm make them.

inline void round_to_bf16(const Tensor& t) {
  for (std::int64_t i = 0; i < t.elements(); ++i) t.f32()[i] = f32_from_bf16(bf16_from_f32(t.f32()[i]));
}

// x has the scale of numbers up to 1.
inline ops::HeadInFp8<Tensor> head_in_fp8(Memory& memory, const ops::LmLoss<Tensor>& op, ThreadPool& pool) {
  const auto scale = [&](float of) {
    return memory.object(ops::Fp8Scale{.inverse = 1 / of, .scale = of, .next = 0, .amax = 0, .history = {}});
  };
  const std::int64_t n = op.x.rows(), d = op.x.columns(), vocab = op.weight.rows();
  const ops::HeadInFp8<Tensor> head{.x = memory.array(DType::e4m3, {d, n}),
                                    .x_scale = scale(ops::scale_for(1, kE4m3.largest)),
                                    .weight = memory.array(DType::e4m3, {d, vocab}),
                                    .weight_scale = scale(1),
                                    .dlogits_scale = scale(ops::kDlogitsScale),
                                    .dlogits = memory.array(DType::e5m2, {vocab, op.logits.rows()})};
  ops::cpu::run(ops::Quantize<Tensor>{op.x, {.columns = head.x, .scale = head.x_scale}}, pool);
  ops::cpu::run(ops::QuantizeWeight<Tensor>{op.weight, {}, head.weight, head.weight_scale}, pool);
  return head;
}

}  // namespace redline::testing
