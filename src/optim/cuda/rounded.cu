// fp32 to bf16 at random, and back, by the rules of optim/rounded.h.
// One thread has the eight elements of one draw, and all loads and stores of it are of consecutive elements.
#include "base/random.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"
#include "optim/moments.h"
#include "optim/rounded.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256;
constexpr int kWidth = kRoundedInOneDraw;

// Elements of a thread: kWidth places from a multiple of kWidth on, those of them that are in the array.
struct Part {
  std::int64_t begin, end;  // elements
  __device__ Part(std::int64_t first_place, std::int64_t n) {
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t at = thread * kWidth - first_place % kWidth;
    begin = at < 0 ? 0 : at;
    end = at + kWidth < n ? at + kWidth : n;
  }
  __device__ bool whole() const { return end - begin == kWidth; }
};

template <bool kAccumulate>
__global__ void __launch_bounds__(kThreads)
    round_at_random(Rounded what, const float* x, std::uint16_t* kept, const StepState* state, std::int64_t first_place,
                    std::int64_t all, std::int64_t n, bool vectors) {
  const Part part(first_place, n);
  if (part.begin >= part.end) return;
  const Random random(state->seed, first_stream(what) + state->step);
  const std::int64_t place = first_place + part.begin;
  const auto words =
      random.words(first_draw(what, state->first_token, all) + static_cast<std::uint64_t>(place / kWidth));
  const auto bits = [&](std::int64_t e) { return words[e / 2] >> (e % 2 * 16) & 0xFFFFu; };
  if (vectors && part.whole()) {
    alignas(16) float in[kWidth];
    alignas(16) std::uint16_t out[kWidth];
    *reinterpret_cast<float4*>(in) = *reinterpret_cast<const float4*>(x + part.begin);
    *reinterpret_cast<float4*>(in + 4) = *reinterpret_cast<const float4*>(x + part.begin + 4);
    if constexpr (kAccumulate) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(kept + part.begin);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) in[e] = f32_from_bf16(out[e]) + in[e];
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out[e] = bf16_at_random(in[e], bits(e));
    *reinterpret_cast<uint4*>(kept + part.begin) = *reinterpret_cast<const uint4*>(out);
    return;
  }
  for (std::int64_t i = part.begin; i < part.end; ++i) {
    const float value = kAccumulate ? f32_from_bf16(kept[i]) + x[i] : x[i];
    kept[i] = bf16_at_random(value, bits((first_place + i) % kWidth));
  }
}

__global__ void __launch_bounds__(kThreads) widen(const std::uint16_t* kept, float* x, std::int64_t n, bool vectors) {
  const Part part(0, n);
  if (part.begin >= part.end) return;
  if (vectors && part.whole()) {
    alignas(16) std::uint16_t in[kWidth];
    alignas(16) float out[kWidth];
    *reinterpret_cast<uint4*>(in) = *reinterpret_cast<const uint4*>(kept + part.begin);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out[e] = f32_from_bf16(in[e]);
    *reinterpret_cast<float4*>(x + part.begin) = *reinterpret_cast<const float4*>(out);
    *reinterpret_cast<float4*>(x + part.begin + 4) = *reinterpret_cast<const float4*>(out + 4);
    return;
  }
  for (std::int64_t i = part.begin; i < part.end; ++i) x[i] = f32_from_bf16(kept[i]);
}

unsigned blocks_of(std::int64_t first_place, std::int64_t n) {
  const std::int64_t threads = (first_place % kWidth + n + kWidth - 1) / kWidth;
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}
bool at_16_bytes(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace

void run(const RoundAtRandom<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.x.elements();
  if (n == 0) return;
  const bool vectors = op.begin % kWidth == 0 && at_16_bytes(op.x.data) && at_16_bytes(op.kept.data);
  const auto kernel = op.accumulate ? round_at_random<true> : round_at_random<false>;
  kernel<<<blocks_of(op.begin, n), kThreads, 0, launch.stream>>>(
      op.what, op.x.f32(), op.kept.as<std::uint16_t>(), op.state.as<StepState>(), op.begin, op.all, n, vectors);
  REDLINE_LAUNCHED();
}

void run(const Widen<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.x.elements();
  if (n == 0) return;
  const bool vectors = at_16_bytes(op.x.data) && at_16_bytes(op.kept.data);
  widen<<<blocks_of(0, n), kThreads, 0, launch.stream>>>(op.kept.as<std::uint16_t>(), op.x.f32(), n, vectors);
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
