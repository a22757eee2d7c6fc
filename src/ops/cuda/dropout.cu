// Dropout by counter: element e of token t is kept, times 1 / (1 - p), when word (e mod 4) of the Philox block
//   (first_token + t) * ceil(d / 4) + e / 4   of stream (seed, stream * 2^40 + step)   is at least p * 2^32.
// One thread has one vector, at most two Philox blocks, drawn again wherever they are needed: no mask is stored. A
// scalar (odd widths) draws its whole block for one word.
#include <cmath>

#include "base/random.h"
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads)
    dropout(const T* x, T* y, const StepState* state, std::int64_t n, std::int32_t d, std::uint64_t stream,
            std::uint32_t threshold, float scale) {
  constexpr int kBlock = kWidth < 4 ? kWidth : 4;  // elements taken of one Philox block
  const Place at = place_of_thread<kWidth>(n, d);
  if (!at.inside) return;
  const auto from = load<kWidth>(x + at.row * d + at.column);
  const Random random(state->seed, (stream << 40) + state->step);
  const std::uint64_t row = (state->first_token + static_cast<std::uint64_t>(at.row)) * ((d + 3) / 4);
  float out[kWidth];
#pragma unroll
  for (int first = 0; first < kWidth; first += kBlock) {
    const auto words = random.words(row + (at.column + first) / 4);
    if constexpr (kWidth == 1) {
      const int e = at.column % 4;
      const std::uint32_t word = e < 2 ? (e == 0 ? words[0] : words[1]) : (e == 2 ? words[2] : words[3]);
      out[0] = word >= threshold ? from[0] * scale : 0.0f;
    } else {
#pragma unroll
      for (int e = 0; e < kBlock; ++e) out[first + e] = words[e] >= threshold ? from[first + e] * scale : 0.0f;
    }
  }
  store(y + at.row * d + at.column, out);
}

}  // namespace

void run(const Dropout<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), d = op.x.columns();
  if (op.p >= 1.0f) {  // the threshold would not fit its word
    REDLINE_CUDA(cudaMemsetAsync(op.y.data, 0, static_cast<std::size_t>(op.y.bytes()), launch.stream));
    return;
  }
  const auto threshold = static_cast<std::uint32_t>(std::ceil(static_cast<double>(op.p) * 0x1p32));
  const float scale = 1.0f / (1.0f - op.p);
  for_type_and_width(op.x.dtype, in_vectors(d, {op.x, op.y}), [&]<class T, int kWidth>() {
    dropout<T, kWidth><<<place_blocks(n, d, kWidth), kPlaceThreads, 0, launch.stream>>>(
        op.x.as<T>(), op.y.as<T>(), op.state.as<StepState>(), n, static_cast<std::int32_t>(d), op.stream, threshold,
        scale);
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
