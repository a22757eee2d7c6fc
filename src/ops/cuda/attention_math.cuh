// The arithmetics of attention's tiles, a struct each: the elements of a tile, the operands that mma takes
// of them, and how an accumulator becomes its left operand. A step of a product is two chunks of a tile's rows.
//   Bf16  mma.m16n8k16.
//   Tf32  mma.m16n8k8 of fp32 elements, rounded to the 11 bits that it takes.
//   Fp32  the same with each element as a sum of two of 11 bits: three products, as the product of the two remainders
//         is less than what is left out of them. The error is some 2^-21 of a term, where fp32 itself rounds by 2^-24.
//         mma cuts off what does not fit into its sum, always towards zero, so that long sums drift: here it sums a
//         step only.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/attention_ptx.cuh"

namespace redline::ops::cuda {

struct Bf16 {
  using Element = __nv_bfloat16;
  static constexpr int kDepth = 16;  // elements of a step
  struct Left {
    std::uint32_t words[4];
  };
  struct Right {
    std::uint32_t words[2];
  };
  __device__ static Left left(const std::uint32_t (&w)[4]) { return {{w[0], w[1], w[2], w[3]}}; }
  __device__ static Right right(std::uint32_t w0, std::uint32_t w1) { return {{w0, w1}}; }
  __device__ static void multiply(float (&c)[4], const Left& a, const Right& b) {
    mma(c, a.words, b.words[0], b.words[1]);
  }
  // Step k of a row of accumulators: rounded, two neighbours of 8 columns make one of 16.
  template <int kN>
  __device__ static Left weights(const float (&c)[kN][4], int k) {
    const auto& low = c[2 * k];
    const auto& high = c[2 * k + 1];
    return {{pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
             pack_bf16(high[2], high[3])}};
  }
};

template <bool kExact>
struct Float32 {
  using Element = float;
  static constexpr int kDepth = 8;
  template <int kWords>
  struct Operand {
    std::uint32_t large[kWords], small[kExact ? kWords : 1];
    __device__ void set(int i, float x) {
      large[i] = round_to_tf32(x);
      if constexpr (kExact) small[i] = round_to_tf32(x - __uint_as_float(large[i]));
    }
  };
  using Left = Operand<4>;
  using Right = Operand<2>;

  __device__ static Left left(const std::uint32_t (&w)[4]) {
    Left a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, __uint_as_float(w[i]));
    return a;
  }
  __device__ static Right right(std::uint32_t w0, std::uint32_t w1) {
    Right b;
    b.set(0, __uint_as_float(w0));
    b.set(1, __uint_as_float(w1));
    return b;
  }
  __device__ static void multiply(float (&c)[4], const Left& a, const Right& b) {
    if constexpr (kExact) {
      float step[4] = {};
      mma_tf32(step, a.small, b.large[0], b.large[1]);
      mma_tf32(step, a.large, b.small[0], b.small[1]);
      mma_tf32(step, a.large, b.large[0], b.large[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] += step[i];
    } else {
      mma_tf32(c, a.large, b.large[0], b.large[1]);
    }
  }
  // An accumulator's columns 2 c and 2 c + 1 are a left operand's c and c + 4 once the right operand's rows are taken
  // in that order: a sum does not mind.
  template <int kN>
  __device__ static Left weights(const float (&c)[kN][4], int k) {
    Left a;
    a.set(0, c[k][0]);
    a.set(1, c[k][2]);
    a.set(2, c[k][1]);
    a.set(3, c[k][3]);
    return a;
  }
};
using Tf32 = Float32<false>;
using Fp32 = Float32<true>;

template <class Math>
using Element = typename Math::Element;

}  // namespace redline::ops::cuda
