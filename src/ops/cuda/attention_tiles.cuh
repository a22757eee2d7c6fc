// Tiles of attention in shared memory and the two products they take part in. A tile is rows of head_dim bf16 in chunks
// of 16 bytes, kept in squares of 8 rows by 8 chunks; in row r of a square chunk c is at c ^ r, so that eight rows of one
// column of chunks, which is what ldmatrix reads and what accumulators write, lie in different banks. It is also the
// layout with a swizzle of 128 bytes that Hopper's products read. Tiles start at multiples of 1024 bytes.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/attention_ptx.cuh"

namespace redline::ops::cuda {

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr float kLog2E = 1.44269504f;

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

template <int kHeadDim>
struct TileRows {
  static constexpr int kRowBytes = kHeadDim * 2, kChunks = kHeadDim / 8;  // bytes of 8 rows: 8 kRowBytes
  static constexpr int kSquareBytes = 8 * 8 * 16;
  __device__ static constexpr std::uint32_t offset(int row, int chunk) {
    return chunks_on(static_cast<std::uint32_t>(row / 8 * 8 * kRowBytes + row % 8 * 128 + row % 8 * 16), chunk);
  }
  // From the place of a row's chunk 0 to that of any other, or from that of chunk 1 to one an even number of chunks later:
  // the swizzle is an exclusive or, which adds only where the two numbers share no bit.
  __device__ static constexpr std::uint32_t chunks_on(std::uint32_t place, int chunks) {
    return (place ^ static_cast<std::uint32_t>(chunks % 8 * 16)) +
           static_cast<std::uint32_t>(chunks / 8 * kSquareBytes);
  }
};

// One thread's share of copying rows of global memory into tiles, from row 0 on: every call takes the next kRows rows.
// Rows from `present` on become zeros: no neighbour's NaN gets in. One pointer runs along, since a pointer for each of
// a thread's rows would cost registers that the accumulators need.
template <int kHeadDim>
class TileReader {
 public:
  __device__ TileReader() = default;
  __device__ TileReader(const __nv_bfloat16* rows, int stride, int present)
      : source_(reinterpret_cast<const char*>(rows + static_cast<std::int64_t>(row()) * stride + chunk() * 8)),
        step_(static_cast<std::uint32_t>(kRowsAtOnce * stride) * 2),
        present_(present - row()) {}

  template <int kRows>
  __device__ void load(std::uint32_t tile) {
    load_rows<kRows, false>(tile, 0, 0);
  }
  // The same rows of two arrays that lie `distance` elements apart.
  template <int kRows>
  __device__ void load_both(std::uint32_t tile, std::uint32_t other_tile, int distance) {
    load_rows<kRows, true>(tile, other_tile, distance);
  }

 private:
  using Rows = TileRows<kHeadDim>;
  static constexpr int kRowsAtOnce = kThreads / Rows::kChunks;
  __device__ static int row() { return static_cast<int>(threadIdx.x) / Rows::kChunks; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % Rows::kChunks; }

  template <int kRows, bool kBoth>
  __device__ void load_rows(std::uint32_t tile, std::uint32_t other_tile, int distance) {
    static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const std::uint32_t to = Rows::offset(row(), chunk());
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const std::uint32_t at = to + i * kRowsAtOnce * Rows::kRowBytes;
      const bool present = i * kRowsAtOnce < present_;
      copy_16(tile + at, source_, present);
      if (kBoth) copy_16(other_tile + at, source_ + static_cast<std::int64_t>(distance) * 2, present);
      source_ += step_;
    }
    present_ -= kRows;
  }

  const char* source_;
  std::uint32_t step_;
  int present_;
};

// c = left right^T for 16 kM rows of one tile and 8 kN rows of another, both summed over head_dim in steps k of 16
// columns, which are chunks 2 k and 2 k + 1.
template <int kHeadDim, int kM, int kN>
__device__ inline void multiply_rows(float (&c)[kM][kN][4], std::uint32_t left, std::uint32_t right) {
  using Rows = TileRows<kHeadDim>;
  static_assert(kN % 2 == 0);
  const int lane = lane_index();
  left += Rows::offset(lane % 16, lane / 16);
  right += Rows::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
  }
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_matrices(a[m], Rows::chunks_on(left, 2 * k) + m * 16 * Rows::kRowBytes);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, Rows::chunks_on(right, 2 * k) + n * 8 * Rows::kRowBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][n], a[m], b[0], b[1]);
        mma(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// c += weights right: the weights are 16 kM x 16 kK in registers, `right` is 16 kK rows of a tile.
template <int kHeadDim, int kM, int kK>
__device__ inline void multiply_weights(float (&c)[kM][kHeadDim / 8][4], const std::uint32_t (&weights)[kM][kK][4],
                                        std::uint32_t right) {
  using Rows = TileRows<kHeadDim>;
  const int lane = lane_index();
  right += Rows::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t b[4];
      load_matrices_transposed(b, Rows::chunks_on(right, n) + k * 16 * Rows::kRowBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma(c[m][n], weights[m][k], b[0], b[1]);
        mma(c[m][n + 1], weights[m][k], b[2], b[3]);
      }
    }
  }
}

// An accumulator's fragments are, rounded, a left operand's fragments: two neighbours of 8 columns make one of 16.
template <int kM, int kN>
__device__ inline void round_to_weights(std::uint32_t (&weights)[kM][kN / 2][4], const float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      weights[m][k][0] = pack_bf16(c[m][2 * k][0], c[m][2 * k][1]);
      weights[m][k][1] = pack_bf16(c[m][2 * k][2], c[m][2 * k][3]);
      weights[m][k][2] = pack_bf16(c[m][2 * k + 1][0], c[m][2 * k + 1][1]);
      weights[m][k][3] = pack_bf16(c[m][2 * k + 1][2], c[m][2 * k + 1][3]);
    }
  }
}

// Scores of keys that come after the query become -infinity. `rows` and `columns` are the first token of each;
// transposed: keys are rows.
template <bool kTransposed, int kM, int kN>
__device__ inline void hide_later_keys(float (&scores)[kM][kN][4], int rows, int columns) {
  const int ahead = rows + lane_index() / 4 - columns - lane_index() % 4 * 2;  // of its column, in scores[0][0][0]
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column =
            n * 8 + i % 2 - m * 16 - i / 2 * 8;  // seen from its row, which takes its place beside `ahead`
        if (kTransposed ? ahead > column : ahead < column) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

// One warp writes its accumulator, each row times its factor, through its own rows of shared memory, so that global
// memory gets whole rows.
template <int kHeadDim, int kM>
__device__ inline void store_rows(const float (&c)[kM][kHeadDim / 8][4], const float (&factor)[kM][2],
                                  std::uint32_t own_rows, __nv_bfloat16* to, int stride, int present) {
  using Rows = TileRows<kHeadDim>;
  const int lane = lane_index();
  const std::uint32_t place = own_rows + Rows::offset(lane % 16, lane / 16);
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const auto pair = [&](int n, int half) {
      return pack_bf16(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
    };
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      const std::uint32_t squares[4] = {pair(n, 0), pair(n, 1), pair(n + 1, 0), pair(n + 1, 1)};
      store_matrices(Rows::chunks_on(place, n) + m * 16 * Rows::kRowBytes, squares);
    }
  }
  __syncwarp();
  constexpr int kRowsAtOnce = 32 / Rows::kChunks;
  const int first = lane / Rows::kChunks, chunk = lane % Rows::kChunks;
  to += static_cast<std::int64_t>(first) * stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < kM * 16 / kRowsAtOnce; ++i) {
    const int row = first + i * kRowsAtOnce;
    if (row < present) *reinterpret_cast<uint4*>(to) = load_shared_16(own_rows + Rows::offset(row, chunk));
    to += kRowsAtOnce * stride;
  }
}

// The products of eight bf16 with eight others, summed up.
__device__ inline float dot_chunk(const uint4& a, const uint4& b) {
  const auto pair = [](std::uint32_t u, std::uint32_t v) {
    const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(u));
    const float2 y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
    return x.x * y.x + x.y * y.y;
  };
  return pair(a.x, b.x) + pair(a.y, b.y) + pair(a.z, b.z) + pair(a.w, b.w);
}

// All blocks together write zeros over rows [begin, end), each `row_bytes` long, a multiple of 16.
__device__ inline void clear_rows(void* rows, std::int64_t row_bytes, std::int64_t begin, std::int64_t end) {
  uint4* to = static_cast<uint4*>(rows);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = begin * row_bytes / 16 + blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  for (; i < end * row_bytes / 16; i += step) to[i] = uint4{0, 0, 0, 0};
}

}  // namespace redline::ops::cuda
