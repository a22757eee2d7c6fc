// Dropout by counter: element e of token t is kept when word (e mod 4) of the Philox block
//   (first_token + t) * ceil(d / 4) + e / 4   of stream (seed, stream * 2^40 + step)   is at least p * 2^32.
// A task is a range of tokens; a block of random words serves four neighbouring elements.
#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "base/step_state.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {

void run(const Dropout<Tensor>& op, ThreadPool& pool) {
  const std::int64_t n = op.x.rows(), d = op.x.columns(), blocks = (d + 3) / 4;
  const StepState& state = *op.state.as<StepState>();
  const Random random(state.seed, (op.stream << 40) + state.step);
  const auto threshold = static_cast<std::uint64_t>(std::ceil(static_cast<double>(op.p) * 0x1p32));
  const float scale = 1.0f / (1.0f - op.p);
  for_rows(pool, n, d, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = op.x.f32() + t * d;
      float* y = op.y.f32() + t * d;
      const std::uint64_t first =
          (state.first_token + static_cast<std::uint64_t>(t)) * static_cast<std::uint64_t>(blocks);
      for (std::int64_t b = 0; b < blocks; ++b) {
        const auto words = random.words(first + static_cast<std::uint64_t>(b));
        const std::int64_t elements = std::min<std::int64_t>(4, d - 4 * b);
        for (std::int64_t e = 0; e < elements; ++e) {
          y[4 * b + e] = words[static_cast<std::size_t>(e)] >= threshold ? x[4 * b + e] * scale : 0.0f;
        }
      }
    }
  });
}

}  // namespace redline::ops::cpu
