// Counts over the codes of a copy: four in a word, compared byte by byte. A thread has 16 bytes at a time, the threads
// of a grid one after the other. A warp adds up, and its first lane adds to memory, in integers: the order does not
// matter.
#include <algorithm>

#include "base/small_floats.h"
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256;

// How many bytes of a comparison's result, 0 or 0xFF each, are set.
__device__ unsigned bytes_set(unsigned word) { return static_cast<unsigned>(__popc(word)) / 8; }

__device__ void add_up(unsigned mine, std::uint64_t* to) {
  const unsigned sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum > 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), sum);
}

// A warp's counts fit into 32 bits: it has a small part of what is on a card.
__global__ void __launch_bounds__(kThreads)
    count_fp8(const uint4* codes, std::int64_t vectors, unsigned largest, Fp8Count* count) {
  const unsigned most = largest * 0x01010101u;
  unsigned saturated = 0, zeros = 0, not_finite = 0, seen = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const uint4 v = __ldg(codes + i);
    const unsigned words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const unsigned magnitudes = words[w] & 0x7F7F7F7Fu;
      saturated += bytes_set(__vcmpeq4(magnitudes, most));
      zeros += bytes_set(__vcmpeq4(magnitudes, 0));
      not_finite += bytes_set(__vcmpgtu4(magnitudes, most));
      seen = __vmaxu4(seen, magnitudes);
    }
  }
  add_up(saturated, &count->saturated);
  add_up(zeros, &count->zeros);
  add_up(not_finite, &count->not_finite);
  const unsigned mine = max(max(seen & 0xFFu, seen >> 8 & 0xFFu), max(seen >> 16 & 0xFFu, seen >> 24));
  const unsigned of_warp = __reduce_max_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0) atomicMax(reinterpret_cast<unsigned long long*>(&count->largest), of_warp);
}

}  // namespace

void run(const CountFp8<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(is_fp8(op.copy.dtype) && op.copy.elements() % 16 == 0, "no counts of {} {}", name_of(op.copy.dtype),
                op.copy.shape.str());
  const std::int64_t vectors = op.copy.elements() / 16;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(8 * launch.multiprocessors, ceil_div<std::int64_t>(vectors, kThreads)));
  count_fp8<<<blocks, kThreads, 0, launch.stream>>>(op.copy.as<uint4>(), vectors,
                                                    fp8_format(op.copy.dtype).largest_bits, op.count.as<Fp8Count>());
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
