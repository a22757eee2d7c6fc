// Dropout by counter, by the rule of ops/dropout.h. One thread has one vector and draws one Philox block, again
// wherever the mask is needed: none is stored. A vector of fewer elements than a block (fp32, odd widths) draws it all
// for its part.
#include "base/random.h"
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) dropout(const T* x, T* y, const StepState* state, std::int64_t n,
                                                         std::int32_t d, std::uint64_t stream, DropoutRule rule) {
  static_assert(kDropoutBlock % kWidth == 0);
  const Place at = place_of_thread<kWidth>(n, d);
  if (!at.inside) return;
  const auto from = load_once<kWidth>(x + at.row * d + at.column);
  const Random random(state->seed, (stream << 40) + state->step);
  const std::uint64_t row =
      (state->first_token + static_cast<std::uint64_t>(at.row)) * ((d + kDropoutBlock - 1) / kDropoutBlock);
  const auto words = random.words(row + at.column / kDropoutBlock);
  std::uint64_t low = std::uint64_t{words[1]} << 32 | words[0], high = std::uint64_t{words[3]} << 32 | words[2];
  if constexpr (kWidth < kDropoutBlock) {  // the vector's own bits come first
    const int first = at.column % kDropoutBlock;
    low = (first < 4 ? low : high) >> first % 4 * 16;
  }
  float out[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const auto bits = static_cast<std::uint32_t>((e < 4 ? low : high) >> e % 4 * 16) & 0xFFFFu;
    out[e] = bits >= rule.threshold ? from[e] * rule.scale : 0.0f;
  }
  store_once(y + at.row * d + at.column, Vector<T, kWidth>::from(out));
}

}  // namespace

void run(const Dropout<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), d = op.x.columns();
  for_type_and_width(op.x.dtype, in_vectors(d, {op.x, op.y}), [&]<class T, int kWidth>() {
    dropout<T, kWidth><<<place_blocks(n, d, kWidth), kPlaceThreads, 0, launch.stream>>>(
        op.x.as<T>(), op.y.as<T>(), op.state.as<StepState>(), n, static_cast<std::int32_t>(d), op.stream,
        rule_of(op.p));
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
