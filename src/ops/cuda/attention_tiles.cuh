// Tiles of attention in shared memory and the two products they take part in. A tile is rows of head_dim elements in
// chunks of 16 bytes, kept in squares of 8 rows by 8 chunks; in row r of a square chunk c is at c ^ r, so that eight
// rows of one column of chunks, which is what ldmatrix reads and what accumulators write in bf16, lie in different
// banks. It is also the layout with a swizzle of 128 bytes that Hopper's products read. Tiles start at multiples of
// 1024 bytes.
#pragma once

#include "ops/cuda/attention_math.cuh"

namespace redline::ops::cuda {

inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr float kLog2E = 1.44269504f;

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / 32; }

template <int kHeadDim, class T = __nv_bfloat16>
struct TileRows {
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(T)), kChunks = kRowBytes / 16;
  static constexpr int kSquareBytes = 8 * 8 * 16;
  __device__ static constexpr std::uint32_t offset(int row, int chunk) {
    return chunks_on(static_cast<std::uint32_t>(row / 8 * 8 * kRowBytes + row % 8 * 128 + row % 8 * 16), chunk);
  }
  // From the place of a row's chunk 0 to that of any other, or from that of chunk 1 to one an even number of chunks
  // later: the swizzle is an exclusive or, which adds only where the two numbers share no bit.
  __device__ static constexpr std::uint32_t chunks_on(std::uint32_t place, int chunks) {
    return (place ^ static_cast<std::uint32_t>(chunks % 8 * 16)) +
           static_cast<std::uint32_t>(chunks / 8 * kSquareBytes);
  }
};

// One thread's share of copying rows of global memory into tiles, from row 0 on: every call takes the next kRows rows.
// Rows from `present` on become zeros: no neighbour's NaN gets in. One pointer runs along, since a pointer for each of
// a thread's rows would cost registers that the accumulators need.
template <int kHeadDim, class T = __nv_bfloat16>
class TileReader {
 public:
  __device__ TileReader() = default;
  __device__ TileReader(const T* rows, int stride, int present)
      : source_(reinterpret_cast<const char*>(rows + static_cast<std::int64_t>(row()) * stride) + chunk() * 16),
        step_(static_cast<std::uint32_t>(kRowsAtOnce * stride) * static_cast<std::uint32_t>(sizeof(T))),
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
  using Rows = TileRows<kHeadDim, T>;
  static constexpr int kRowsAtOnce = kThreads / Rows::kChunks;
  __device__ static int row() { return static_cast<int>(threadIdx.x) / Rows::kChunks; }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x) % Rows::kChunks; }

  template <int kRows, bool kBoth>
  __device__ void load_rows(std::uint32_t tile, std::uint32_t other_tile, int distance) {
    static_assert(kRows % kRowsAtOnce == 0 && (kRowsAtOnce % 8 == 0 || 8 % kRowsAtOnce == 0));
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const int first = i * kRowsAtOnce;
      const std::uint32_t at = Rows::offset(row() + first % 8, chunk()) + first / 8 * 8 * Rows::kRowBytes;
      const bool present = i * kRowsAtOnce < present_;
      copy_16(tile + at, source_, present);
      if (kBoth)
        copy_16(other_tile + at, source_ + static_cast<std::int64_t>(distance) * static_cast<int>(sizeof(T)), present);
      source_ += step_;
    }
    present_ -= kRows;
  }

  const char* source_;
  std::uint32_t step_;
  int present_;
};

// c = left right^T for 16 kM rows of one tile and 8 kN rows of another, both summed over head_dim in steps k of two
// chunks, 2 k and 2 k + 1.
template <class Math, int kHeadDim, int kM, int kN>
__device__ inline void multiply_rows(float (&c)[kM][kN][4], std::uint32_t left, std::uint32_t right) {
  using Rows = TileRows<kHeadDim, Element<Math>>;
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
  for (int k = 0; k < kHeadDim / Math::kDepth; ++k) {
    typename Math::Left a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      std::uint32_t words[4];
      load_matrices(words, Rows::chunks_on(left, 2 * k) + m * 16 * Rows::kRowBytes);
      a[m] = Math::left(words);
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t words[4];
      load_matrices(words, Rows::chunks_on(right, 2 * k) + n * 8 * Rows::kRowBytes);
      const auto b = Math::right(words[0], words[1]), next = Math::right(words[2], words[3]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        Math::multiply(c[m][n], a[m], b);
        Math::multiply(c[m][n + 1], a[m], next);
      }
    }
  }
}

// Right operands whose depth is a tile's rows: the words of 8 columns each, from 8 n and 8 (n + 1) on, in step k.
// ldmatrix transposes 2 bytes; words of 4 are read one by one, in the order of Float32::weights, from different banks.
template <class Math, int kHeadDim>
class ColumnReader {
 public:
  __device__ explicit ColumnReader(std::uint32_t tile) {
    const int lane = lane_index();
    if constexpr (kPairs) {
      place_ = tile + Rows::offset(lane % 16, lane / 16);
    } else {
      place_ = tile + Rows::offset(lane % 4 * 2, lane / 16) + lane / 4 % 4 * 4;
      below_ = tile + Rows::offset(lane % 4 * 2 + 1, lane / 16) + lane / 4 % 4 * 4;
    }
  }
  __device__ void load(std::uint32_t (&words)[4], int k, int n) const {
    const int down = k * Math::kDepth * Rows::kRowBytes;
    if constexpr (kPairs) {
      load_matrices_transposed(words, Rows::chunks_on(place_, n) + down);
    } else {
      words[0] = load_shared_4(Rows::chunks_on(place_, 2 * n) + down);
      words[1] = load_shared_4(Rows::chunks_on(below_, 2 * n) + down);
      words[2] = load_shared_4(Rows::chunks_on(place_, 2 * n + 2) + down);
      words[3] = load_shared_4(Rows::chunks_on(below_, 2 * n + 2) + down);
    }
  }

 private:
  using Rows = TileRows<kHeadDim, Element<Math>>;
  static constexpr bool kPairs = sizeof(Element<Math>) == 2;
  std::uint32_t place_, below_;
};

// c += weights right: the weights are accumulators of 16 kM x 8 kN, `right` is 8 kN rows of a tile.
template <class Math, int kHeadDim, int kM, int kN>
__device__ inline void multiply_weights(float (&c)[kM][kHeadDim / 8][4], const float (&weights)[kM][kN][4],
                                        std::uint32_t right) {
  const ColumnReader<Math, kHeadDim> columns(right);
#pragma unroll
  for (int k = 0; k < kN * 8 / Math::kDepth; ++k) {
    typename Math::Left a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) a[m] = Math::weights(weights[m], k);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 2) {
      std::uint32_t words[4];
      columns.load(words, k, n);
      const auto b = Math::right(words[0], words[1]), next = Math::right(words[2], words[3]);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        Math::multiply(c[m][n], a[m], b);
        Math::multiply(c[m][n + 1], a[m], next);
      }
    }
  }
}

// All steps of accumulators as left operands in bf16.
template <int kM, int kN>
__device__ inline void round_to_weights(std::uint32_t (&weights)[kM][kN / 2][4], const float (&c)[kM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      const Bf16::Left step = Bf16::weights(c[m], k);
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[m][k][i] = step.words[i];
    }
  }
}

// Scores become -infinity where `hides(row, column)` says so of their tokens, both counted from the same place. `rows`
// and `columns` are the first token of each.
template <int kM, int kN, class Hides>
__device__ inline void hide_keys(float (&scores)[kM][kN][4], int rows, int columns, const Hides& hides) {
  const int ahead = rows + lane_index() / 4 - columns - lane_index() % 4 * 2;  // of its column, in scores[0][0][0]
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column =
            n * 8 + i % 2 - m * 16 - i / 2 * 8;  // seen from its row, which takes its place beside `ahead`
        if (hides(ahead, column)) scores[m][n][i] = -INFINITY;
      }
    }
  }
}

// Keys that come after the query, and keys that lie `window` tokens or more before it. Transposed: keys are rows.
template <bool kTransposed, int kM, int kN>
__device__ inline void hide_later_keys(float (&scores)[kM][kN][4], int rows, int columns) {
  hide_keys(scores, rows, columns, [](int row, int column) { return kTransposed ? row > column : row < column; });
}
template <bool kTransposed, int kM, int kN>
__device__ inline void hide_far_keys(float (&scores)[kM][kN][4], int rows, int columns, int window) {
  hide_keys(scores, rows, columns,
            [=](int row, int column) { return (kTransposed ? column - row : row - column) >= window; });
}

// One warp writes its accumulator, each row times its factor, through its own rows of shared memory, so that global
// memory gets whole rows.
template <int kHeadDim, int kM, class T>
__device__ inline void store_rows(const float (&c)[kM][kHeadDim / 8][4], const float (&factor)[kM][2],
                                  std::uint32_t own_rows, T* to, int stride, int present) {
  using Rows = TileRows<kHeadDim, T>;
  const int lane = lane_index();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const std::uint32_t rows = own_rows + m * 16 * Rows::kRowBytes;
    if constexpr (sizeof(T) == 2) {
      const std::uint32_t place = rows + Rows::offset(lane % 16, lane / 16);
      const auto pair = [&](int n, int half) {
        return pack_bf16(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
      };
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 2) {
        const std::uint32_t squares[4] = {pair(n, 0), pair(n, 1), pair(n + 1, 0), pair(n + 1, 1)};
        store_matrices(Rows::chunks_on(place, n), squares);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t place = rows + Rows::offset(half * 8 + lane / 4, lane / 2 % 2) + lane % 2 * 8;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n)
          store_shared_pair(Rows::chunks_on(place, 2 * n), c[m][n][2 * half] * factor[m][half],
                            c[m][n][2 * half + 1] * factor[m][half]);
      }
    }
  }
  __syncwarp();
  constexpr int kRowsAtOnce = 32 / Rows::kChunks;
  const int first = lane / Rows::kChunks, chunk = lane % Rows::kChunks;
  to += static_cast<std::int64_t>(first) * stride + chunk * static_cast<int>(16 / sizeof(T));
#pragma unroll
  for (int i = 0; i < kM * 16 / kRowsAtOnce; ++i) {
    const int row = first + i * kRowsAtOnce;
    if (row < present) *reinterpret_cast<uint4*>(to) = load_shared_16(own_rows + Rows::offset(row, chunk));
    to += kRowsAtOnce * stride;
  }
}

// The products of a chunk's elements with another's, summed up.
template <class T>
__device__ inline float dot_chunk(const uint4& a, const uint4& b) {
  const auto word = [](std::uint32_t u, std::uint32_t v) {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(u) * __uint_as_float(v);
    } else {
      const float2 x = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(u));
      const float2 y = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
      return x.x * y.x + x.y * y.y;
    }
  };
  return word(a.x, b.x) + word(a.y, b.y) + word(a.z, b.z) + word(a.w, b.w);
}

// All blocks together write zeros over rows [begin, end), each `row_bytes` long, a multiple of 16.
__device__ inline void clear_rows(void* rows, std::int64_t row_bytes, std::int64_t begin, std::int64_t end) {
  uint4* to = static_cast<uint4*>(rows);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = begin * row_bytes / 16 + blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  for (; i < end * row_bytes / 16; i += step) to[i] = uint4{0, 0, 0, 0};
}

// The softmax of tiled attention, forward, in registers: the running statistics of rows, a step for each tile of
// scores, and the last step. Rows are those of mma's C: lane / 4 and lane / 4 + 8 of each 16.

// The largest score of each row, and this thread's share of its sum of p. It begins below every score, but as a number:
// a row may see no key of the first tiles of a window.
template <int kM>
struct SoftmaxRows {
  float top[kM][2], sum[kM][2];
  __device__ SoftmaxRows() {
#pragma unroll
    for (int m = 0; m < kM; ++m) top[m][0] = top[m][1] = -1e30f, sum[m][0] = sum[m][1] = 0;
  }
};

// Turns scores into p. Earlier sums, if any, are scaled down where a larger score comes.
template <int kM, int kN, int kColumns>
__device__ inline void softmax_step(float (&s)[kM][kN][4], float (&out)[kM][kColumns][4], SoftmaxRows<kM>& rows,
                                    float scale_log2, bool begun) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = rows.top[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float correction = exp2_approx((rows.top[m][half] - top) * scale_log2), shift = top * scale_log2;
      float sum = rows.sum[m][half] * correction;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][n][i] = exp2_approx(s[m][n][i] * scale_log2 - shift);
          sum += s[m][n][i];
        }
      }
      if (begun) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          out[m][n][2 * half] *= correction;
          out[m][n][2 * half + 1] *= correction;
        }
      }
      rows.top[m][half] = top;
      rows.sum[m][half] = sum;
    }
  }
}

// Writes lse of the rows below `present` and gives the factor that turns out's sums into means.
template <int kM>
__device__ inline void finish_softmax(const SoftmaxRows<kM>& rows, float scale, float* lse, int present,
                                      float (&factor)[kM][2]) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[m][half] = 1.0f / sum;
      const int row = m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row < present) lse[row] = rows.top[m][half] * scale + logf(sum);
    }
  }
}

}  // namespace redline::ops::cuda
