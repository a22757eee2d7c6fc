// Dropout by counter, by the rule of ops/dropout.h. A task is a range of tokens. The words of kBlocks blocks are drawn
// first, in a loop that becomes vector code, then applied.
#include <algorithm>

#include "base/random.h"
#include "base/step_state.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kBlocks = 64;

// Without `omp simd`, which would keep GCC from taking the array of four words apart.
void draw(Random random, std::uint64_t first, std::int64_t blocks, std::uint32_t* words) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto w = random.words(first + static_cast<std::uint64_t>(b));
    words[4 * b] = w[0];
    words[4 * b + 1] = w[1];
    words[4 * b + 2] = w[2];
    words[4 * b + 3] = w[3];
  }
}

}  // namespace

void run(const Dropout<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), d = op.x.columns(), blocks = (d + kDropoutBlock - 1) / kDropoutBlock;
  const StepState& state = *op.state.as<StepState>();
  const Random random(state.seed, (op.stream << 40) + state.step);
  const DropoutRule rule = rule_of(op.p);
  for_rows(pool, n, d, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t words[4 * kBlocks];
    for (std::int64_t t = begin; t < end; ++t) {
      const std::uint64_t row =
          (state.first_token + static_cast<std::uint64_t>(t)) * static_cast<std::uint64_t>(blocks);
      for (std::int64_t b = 0; b < blocks; b += kBlocks) {
        draw(random, row + static_cast<std::uint64_t>(b), std::min(kBlocks, blocks - b), words);
        const float* x = op.x.f32() + t * d + kDropoutBlock * b;
        float* y = op.y.f32() + t * d + kDropoutBlock * b;
        const std::int64_t elements = std::min(kDropoutBlock * kBlocks, d - kDropoutBlock * b);
#pragma omp simd
        for (std::int64_t e = 0; e < elements; ++e) {
          const float kept = x[e] * rule.scale;
          y[e] = (words[e / 2] >> (e % 2 * 16) & 0xFFFFu) >= rule.threshold ? kept : 0.0f;
        }
      }
    }
  });
}

}  // namespace redline::ops::cpu
