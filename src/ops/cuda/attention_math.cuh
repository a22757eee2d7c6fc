// The instructions and the arithmetics that attention's tiles are made of. Instructions, one function each: copies that
// do not wait, ldmatrix, the tensor cores' mma.m16n8k16 in bf16 and m16n8k8 in tf32, exp2. All of them need sm_80.
//   mma's fragments, lane l, r = l / 4, c = l % 4 * 2 (two bf16 or fp32 neighbours a register or register pair):
//   A 16 x 16:  a[0] (r, c)  a[1] (r + 8, c)  a[2] (r, c + 8)  a[3] (r + 8, c + 8)
//   B 16 x 8:   b0 (k = c, n = r)  b1 (k = c + 8, n = r)
//   C 16 x 8:   c[0, 1] (r, c)  c[2, 3] (r + 8, c)
// In tf32 a register holds one element: A is 16 x 8 and B 8 x 8 with columns and rows c / 2 and c / 2 + 4. The bytes
// that a lane has of a row are the same.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/overlap.cuh"

namespace redline::ops::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

using device::cuda::await_copies;
using device::cuda::copy_16;
using device::cuda::copy_4;

// Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8 and gets (l / 4, l % 4 * 2) and
// its right neighbour of each. Transposed: (l % 4 * 2, l / 4) and the one below it.
__device__ inline void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&m)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// The way back of load_matrices: lane l gives the address of row l % 8 of matrix l / 8. Before sm_90 by single stores,
// to addresses that the lanes pass to each other.
__device__ inline void store_matrices(std::uint32_t address, const std::uint32_t (&m)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(m[0]),
               "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
#else
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t row = __shfl_sync(~0u, address, i * 8 + lane / 4);
    asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(row + lane % 4 * 4), "r"(m[i]) : "memory");
  }
#endif
}

// c += a b, fp32 accumulation.
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// To the nearest number of 11 bits, in fp32's format.
__device__ inline std::uint32_t round_to_tf32(float x) {
  std::uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
  return y;
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to two bf16, `low` at the lower address.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline uint4 load_shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline std::uint32_t load_shared_4(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline void store_shared_pair(std::uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline float2 load_shared_pair(std::uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

// The arithmetics of attention's tiles, a struct each: the elements of a tile, the operands that mma takes
// of them, and how an accumulator becomes its left operand. A step of a product is two chunks of a tile's rows.
//   Bf16  mma.m16n8k16.
//   Tf32  mma.m16n8k8 of fp32 elements, rounded to the 11 bits that it takes.
//   Fp32  the same with each element as a sum of two of 11 bits: three products, as the product of the two remainders
//         is less than what is left out of them. The error is some 2^-21 of a term, where fp32 itself rounds by 2^-24.
//         mma cuts off what does not fit into its sum, always towards zero, so that long sums drift: here it sums a
//         step only.

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
