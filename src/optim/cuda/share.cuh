// Threads over flat arrays: each has a vector of every array, and what is left over at the end goes one to a thread.
#pragma once

#include "device/cuda/vectors.cuh"

namespace redline::optim::cuda {

inline constexpr int kShareThreads = 256;  // of a block

// Element `first` of the thread, and how many it has: kWidth below the last whole vector, one beyond it.
template <int kWidth>
struct Share {
  std::int64_t first;
  bool whole, inside;
};
template <int kWidth>
__device__ Share<kWidth> share_of_thread(std::int64_t n) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kShareThreads + threadIdx.x, vectors = n / kWidth;
  if (thread < vectors) return {thread * kWidth, true, true};
  const std::int64_t element = vectors * kWidth + (thread - vectors);
  return {element, false, element < n};
}
inline unsigned share_blocks(std::int64_t n, int width) {
  return device::cuda::blocks_for(n / width + n % width, kShareThreads);
}

}  // namespace redline::optim::cuda
