// The vocabulary of kernels: bf16 or fp32 moved up to 16 bytes at a time, arithmetic in fp32, sums over threads in a
// fixed order. Nothing here knows an op.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "base/tensor.h"
#include "device/cuda/launch.h"

namespace redline::device::cuda {

using bf16 = __nv_bfloat16;

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;  // of a block

// N elements as they lie in memory, one access for up to 16 bytes. Elements read as floats; from() rounds to nearest.
// again(i) is [i] by another instruction, for a second use far from the first: the compiler would keep the floats from
// one to the other, in twice the registers.
template <class T, int N>
struct Vector;

template <int N>
struct alignas(N < 4 ? 4 * N : 16) Vector<float, N> {
  float at[N];

  __device__ float operator[](int i) const { return at[i]; }
  __device__ float again(int i) const { return at[i]; }
  __device__ static Vector from(const float (&x)[N]) {
    Vector v;
#pragma unroll
    for (int i = 0; i < N; ++i) v.at[i] = x[i];
    return v;
  }
};

template <int N>
struct alignas(2 * N) Vector<bf16, N> {
  std::uint32_t pairs[N / 2];  // words rather than halves: unpacking is one shift or mask, and a register holds two

  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xFFFF0000u);
  }
  __device__ float again(int i) const {
    return __uint_as_float(__byte_perm(pairs[i / 2], 0, i % 2 == 0 ? 0x1044 : 0x3244));
  }
  __device__ static Vector from(const float (&x)[N]) {
    Vector v;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      v.pairs[i] = __bfloat16_as_ushort(pair.x) | static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
    }
    return v;
  }
};

template <>
struct Vector<bf16, 1> {
  std::uint16_t bits;

  __device__ float operator[](int) const { return __uint_as_float(static_cast<std::uint32_t>(bits) << 16); }
  __device__ float again(int i) const { return (*this)[i]; }
  __device__ static Vector from(const float (&x)[1]) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x[0]))}; }
};

template <int N, class T>
__device__ Vector<T, N> load(const T* from) {
  return *reinterpret_cast<const Vector<T, N>*>(from);
}
template <int N, class T>
__device__ void store(T* to, const Vector<T, N>& v) {
  *reinterpret_cast<Vector<T, N>*>(to) = v;
}
template <int N, class T>
__device__ void store(T* to, const float (&x)[N]) {
  store<N>(to, Vector<T, N>::from(x));
}

// The same for data that is not read again before it has left the caches: tables that all threads read stay in them.
template <int N, class T>
__device__ Vector<T, N> load_once(const T* from) {
  if constexpr (sizeof(T) * N == 16) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
    return reinterpret_cast<const Vector<T, N>&>(bits);
  } else {
    return load<N>(from);
  }
}
template <int N, class T>
__device__ void store_once(T* to, const Vector<T, N>& v) {
  if constexpr (sizeof(T) * N == 16)
    __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(v));
  else
    store<N>(to, v);
}

// Over a warp; every lane gets the same bits.
template <class V>
__device__ V warp_sum(V value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

// Over one row of a block: the blockDim.x threads, whole warps, with this thread's threadIdx.y; each of them gets it.
// `parts` is shared memory, one entry for each warp of the block, that no thread still reads. Where a row is more than
// a warp this is a barrier for the block.
template <class V>
__device__ V row_sum(V value, V* parts) {
  value = warp_sum(value);
  const unsigned warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  V* row = parts + threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) row[threadIdx.x / kWarp] = value;
  __syncthreads();
  V sum = row[0];
  for (unsigned w = 1; w < warps; ++w) sum += row[w];
  return sum;
}
__device__ inline float row_max(float value, float* parts) {
  value = warp_max(value);
  const unsigned warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  float* row = parts + threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) row[threadIdx.x / kWarp] = value;
  __syncthreads();
  float top = row[0];
  for (unsigned w = 1; w < warps; ++w) top = fmaxf(top, row[w]);
  return top;
}

template <class I>
constexpr I ceil_div(I a, I b) {
  return (a + b - 1) / b;
}
constexpr std::int64_t whole_warps(std::int64_t threads) { return ceil_div<std::int64_t>(threads, kWarp) * kWarp; }

// The blocks that `items` need, so many to a block.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = ceil_div(items, per_block);
  REDLINE_CHECK(blocks > 0 && blocks <= std::numeric_limits<std::int32_t>::max(), "{} items in blocks of {}", items,
                per_block);
  return static_cast<unsigned>(blocks);
}

// Element-wise kernels give each thread one vector of a [rows, columns] array, row after row, or `of` vectors, of which
// `which` is one: those of a block lie together, and a thread's are a block's threads apart.
struct Place {
  std::int64_t row;
  std::int32_t column;
  bool inside;
};
inline constexpr int kPlaceThreads = 256;
inline unsigned place_blocks(std::int64_t rows, std::int64_t columns, int width, int of = 1) {
  const std::int64_t vectors = rows * (columns / width);
  REDLINE_CHECK(vectors < std::numeric_limits<std::int32_t>::max(), "{} x {} elements are too many", rows, columns);
  return blocks_for(vectors, kPlaceThreads * of);
}
template <int kWidth>
__device__ Place place_of_thread(std::int64_t rows, std::int32_t columns, int of = 1, int which = 0) {
  // 32 bits: a 64-bit division would cost more than the rest of such a kernel.
  const std::uint32_t index = (blockIdx.x * of + which) * kPlaceThreads + threadIdx.x, vectors = columns / kWidth;
  const std::uint32_t row = index / vectors;
  return {row, static_cast<std::int32_t>((index - row * vectors) * kWidth), row < rows};
}

// Kernels over flat arrays give each thread a vector of every array; what is left over at the end goes one to a thread.
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
inline unsigned share_blocks(std::int64_t n, int width) { return blocks_for(n / width + n % width, kShareThreads); }

// Whether every one of these can be taken 16 bytes at a time in runs of `elements`; absent ones do not matter.
inline bool in_vectors(std::int64_t elements, std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors) {
    if (reinterpret_cast<std::uintptr_t>(t.data) % 16 != 0) return false;
    if (t.present() && elements * static_cast<std::int64_t>(size_of(t.dtype)) % 16 != 0) return false;
  }
  return true;
}

// Calls f.operator()<T, kWidth>() for the operands' type, 16 bytes wide or one element at a time.
template <class F>
void for_type_and_width(DType dtype, bool vectors, const F& f) {
  REDLINE_CHECK(dtype == DType::bf16 || dtype == DType::f32, "kernels take bf16 or f32, not {}", name_of(dtype));
  if (dtype == DType::bf16) {
    vectors ? f.template operator()<bf16, 8>() : f.template operator()<bf16, 1>();
  } else {
    vectors ? f.template operator()<float, 4>() : f.template operator()<float, 1>();
  }
}

}  // namespace redline::device::cuda
