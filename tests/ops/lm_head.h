// Heads with random operands for the tests of lm_loss on both backends.
#pragma once

#include "ops/lm_loss.h"
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

}  // namespace redline::testing
