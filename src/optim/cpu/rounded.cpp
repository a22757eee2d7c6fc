// fp32 to bf16 at random, and back. The executor takes bf16 to fp32 for a node and rounds what it wrote: what is
// written here has no more bits than bf16, so that nothing is rounded twice.
#include "optim/rounded.h"

#include <algorithm>

#include "base/random.h"
#include "optim/cpu/kernels.h"

namespace redline::optim::cpu {
namespace {

constexpr std::int64_t kGrain = 1 << 15;

}  // namespace

void run(const RoundAtRandom<Tensor>& op, ThreadPool& pool) {
  const StepState& state = *op.state.as<StepState>();
  const Random random(state.seed, first_stream(op.what) + state.step);
  const std::uint64_t first = first_draw(op.what, state.first_token, op.all);
  const float* const x = op.x.f32();
  float* const kept = op.kept.f32();
  pool.for_ranges(op.x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t place = op.begin + i;
      const auto words = random.words(first + static_cast<std::uint64_t>(place / kRoundedInOneDraw));
      const std::int64_t last = std::min(end, i + kRoundedInOneDraw - place % kRoundedInOneDraw);
      for (std::int64_t e = place % kRoundedInOneDraw; i < last; ++i, ++e) {
        const std::uint32_t bits = words[static_cast<std::size_t>(e / 2)] >> (e % 2 * 16) & 0xFFFFu;
        kept[i] = f32_from_bf16(bf16_at_random(op.accumulate ? kept[i] + x[i] : x[i], bits));
      }
    }
  });
}

void run(const Widen<Tensor>& op, ThreadPool& pool) {
  pool.for_ranges(op.x.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::copy_n(op.kept.f32() + begin, end - begin, op.x.f32() + begin);
  });
}

}  // namespace redline::optim::cpu
