// Casts to eight bits inside kernels, and tiles that turn over. A value is rounded to bf16 before the cast, so a kernel
// that writes its result in eight bits gives the bytes that quantize makes of its bf16 result.
//
// A tile is kTileRows rows of 64 columns; a warp has 16 rows of it at a time. A lane has 8 columns (lane % 8) of 4 rows
// that follow each other (lane / 8 says which four): four words of each four columns, turned over in registers, go to
// the tile's columns in shared memory, a word each. Words of a column are 16 bytes apart in groups that depend on the
// column: neither the writes nor the reads of 16 bytes meet in a bank.
#pragma once

#include <cuda_fp8.h>

#include <cstddef>

#include "device/cuda/vectors.cuh"
#include "ops/fp8.h"

namespace redline::ops::cuda {

// The operands of ops::Fp8Copies as a kernel takes them.
struct CastTo {
  std::uint8_t *rows, *columns;  // either may be null
  const Fp8Scale* scale;
  float* amax;  // or null
  bool e5m2;
  bool blocks;  // the columns lie in them
};
enum class Columns { whole, any };  // that a kernel can write
inline CastTo cast_to(const Fp8Copies<Tensor>& to, Columns can = Columns::whole) {
  const Tensor& any = to.rows.present() ? to.rows : to.columns;
  const bool blocks = to.columns.shape.rank() == 3;
  REDLINE_CHECK(!blocks || can == Columns::any, "columns {} are in blocks, which this kernel does not write",
                to.columns.shape.str());
  return {to.rows.as<std::uint8_t>(), to.columns.as<std::uint8_t>(),
          to.scale.as<Fp8Scale>(),    to.amax.f32(),
          any.dtype == DType::e5m2,   blocks};
}

// Transposes fp8 rows [n, d] that are `stride` apart into columns [d, n], or in blocks, as quantize does without gaps.
void turn_over(const Tensor& rows, std::int64_t stride, const Tensor& columns, cudaStream_t stream);

// Four numbers, the first in the lowest byte, rounded to nearest even and saturating.
template <bool kE5m2>
__device__ std::uint32_t cast_4(float a, float b, float c, float d) {
  constexpr __nv_fp8_interpretation_t kFormat = kE5m2 ? __NV_E5M2 : __NV_E4M3;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kFormat);
  return low | high << 16;
}

// Eight values of bf16, scaled.
template <bool kE5m2>
__device__ uint2 cast_8(const device::cuda::Vector<device::cuda::bf16, 8>& x, float scale) {
  return {cast_4<kE5m2>(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
          cast_4<kE5m2>(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale)};
}

// The largest magnitude that a thread has seen, as the bits of bf16 in either half of a word: magnitudes of floats are
// in the order of their bits, and NaN is above all.
struct LargestBits {
  std::uint32_t low = 0, high = 0;

  __device__ void add(const device::cuda::Vector<device::cuda::bf16, 8>& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low = max(low, x.pairs[i] & 0x7FFFu);
      high = max(high, x.pairs[i] & 0x7FFF0000u);
    }
  }
  // Records a warp's largest in memory: for kernels of few blocks.
  __device__ void record(float* amax) const {
    const std::uint32_t most = __reduce_max_sync(~0u, max(low << 16, high));
    if (threadIdx.x % device::cuda::kWarp == 0) atomicMax(reinterpret_cast<int*>(amax), static_cast<int>(most));
  }
  // For the block: before a barrier each thread puts its own, after it one thread records all. The order of blocks
  // does not matter. An atomic for each warp made quantize take twice as long: all of them meet at one address.
  __device__ void put(std::uint32_t (&of_warps)[device::cuda::kMaxWarps], int thread) const {
    const std::uint32_t most = __reduce_max_sync(~0u, max(low << 16, high));
    if (thread % device::cuda::kWarp == 0) of_warps[thread / device::cuda::kWarp] = most;
  }
  __device__ static void record(const std::uint32_t (&of_warps)[device::cuda::kMaxWarps], int warps, float* amax) {
    std::uint32_t most = 0;
    for (int warp = 0; warp < warps; ++warp) most = max(most, of_warps[warp]);
    atomicMax(reinterpret_cast<int*>(amax), static_cast<int>(most));
  }
};

inline constexpr int kTileColumns = 64, kTileUnit = 16;  // rows that a warp has at a time

// A thread's part of its block's tile: four rows from `row`, eight columns from `column`.
struct TileThread {
  static constexpr int kRows = 128, kThreads = kRows / kTileUnit * device::cuda::kWarp;
  int row, column;

  __device__ TileThread() {
    const int lane = static_cast<int>(threadIdx.x) % device::cuda::kWarp;
    row = static_cast<int>(threadIdx.x) / device::cuda::kWarp * kTileUnit + lane / 8 * 4;
    column = lane % 8 * 8;
  }
};

// A word of four rows, for each of four columns, from words of four columns.
__device__ inline void turn_4x4(const std::uint32_t (&rows)[4], std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), high01 = __byte_perm(rows[0], rows[1], 0x7362);
  const std::uint32_t low23 = __byte_perm(rows[2], rows[3], 0x5140), high23 = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// The columns of a tile of kRows rows, in shared memory: 64 * kRows bytes, aligned to 16.
template <int kRows>
struct TurnedTile {
  static constexpr int kChunks = kRows / 16;  // of 16 bytes, of a column
  static_assert(kChunks == 8, "the order of chunks is made for eight");
  uint4 chunks[kTileColumns * kChunks];

  // A lane's part: four rows from `row` (a multiple of 4) by eight columns from `column` (a multiple of 8).
  __device__ void put(int row, int column, const uint2 (&bytes)[4]) {
    std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(chunks);
    const int chunk = row / 16, word = row / 4 % 4, swizzled = chunk ^ (column / 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t rows[4], columns[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) rows[r] = half == 0 ? bytes[r].x : bytes[r].y;
      turn_4x4(rows, columns);
#pragma unroll
      for (int c = 0; c < 4; ++c) words[((column + 4 * half + c) * kChunks + swizzled) * 4 + word] = columns[c];
    }
  }
  __device__ uint4 chunk(int column, int index) const { return chunks[column * kChunks + (index ^ (column / 8))]; }

  // All of it to the columns of [n, d], from row `row` and column `column` on, up to the column `end`, by a block's
  // threads, after a barrier. n is a multiple of 16. A tile has the rows of a block, so what it has after n, which is
  // 0, is written there.
  __device__ void store(const CastTo& to, std::int64_t row, std::int32_t column, std::int64_t n, std::int32_t d,
                        std::int32_t end, int thread, int threads) const {
    static_assert(kRows == kColumnBlock);
    const std::int64_t pitch = to.blocks ? kRows : n;
    std::uint8_t* const first = to.columns + (to.blocks ? row * d : row) + column * pitch;
    for (int i = thread; i < kTileColumns * kChunks; i += threads) {
      const int c = i / kChunks, index = i % kChunks;
      if (column + c >= end || (!to.blocks && row + 16 * index >= n)) continue;
      *reinterpret_cast<uint4*>(first + c * pitch + 16 * index) = chunk(c, index);
    }
  }
};

// Columns in eight bits from kernels that have whole rows at a time, as norms do. A block has tiles of 64 rows, or 32,
// and all their columns, in shared memory as they lie; when a tile is full its threads turn it over, 16 rows of four
// columns each, and write 64 bytes of a column together. Blocks take the tiles in turn: those that are under way at one
// time are neighbours, so the lines that two of them share are whole before they leave the second-level cache.
//
// No two threads of a warp meet in a bank. A row lies in units of eight bytes, whose order within 16 depends on the
// group of 16 rows that the row is in. A warp that writes has units of one row, so any order will do. A warp that reads
// has one word of each group at a time, which the groups' orders keep apart.

// Rows that follow each other.
struct RowRun {
  std::int64_t begin;
  std::int32_t count;  // 0: there are none
};

struct RowTiles {
  std::int32_t chunk_bits = 0;  // 2^chunk_bits groups of 16 rows
  std::int32_t pitch = 0;       // bytes from row to row, a multiple of 128

  __host__ __device__ std::int32_t rows() const { return 16 << chunk_bits; }
  __host__ __device__ std::int32_t bytes() const { return rows() * pitch; }

  // The rows of the block's tile number `index`.
  __device__ RowRun run_of_block(std::int32_t index, std::int64_t n) const {
    const std::int64_t begin = (blockIdx.x + static_cast<std::int64_t>(index) * gridDim.x) * rows();
    return {begin, static_cast<std::int32_t>(max(std::int64_t{0}, min(n - begin, static_cast<std::int64_t>(rows()))))};
  }

  // Eight columns of a row of the tile.
  __device__ void put(std::byte* tile, std::int32_t row, std::int32_t column, uint2 bytes) const {
    const std::int32_t unit = (column / 8) ^ ((row / 16) << (4 - chunk_bits));
    *reinterpret_cast<uint2*>(tile + row * pitch + 8 * unit) = bytes;
  }

  // All of it to [d, n], from row `first` of [n, d], once all threads of the block have put theirs; they may put the
  // next tile's then. n is a multiple of 16.
  __device__ void store_columns(const std::byte* tile, std::uint8_t* to, std::int64_t first, std::int64_t n,
                                std::int32_t d) const {
    __syncthreads();
    const auto thread = static_cast<std::int32_t>(threadIdx.y * blockDim.x + threadIdx.x);
    const auto threads = static_cast<std::int32_t>(blockDim.x * blockDim.y);
    const auto* const words = reinterpret_cast<const std::uint32_t*>(tile);
    const std::int32_t row_words = pitch / 4;
    for (std::int32_t i = thread; i < (d / 4) << chunk_bits; i += threads) {
      const std::int32_t chunk = i & ((1 << chunk_bits) - 1), four = i >> chunk_bits;
      if (first + 16 * chunk >= n) continue;
      const std::uint32_t* const from = words + 16 * chunk * row_words + (four ^ (chunk << (5 - chunk_bits)));
      std::uint32_t turned[4][4];  // of each four rows, a word for each of the columns
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t rows[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) rows[r] = from[(4 * k + r) * row_words];
        turn_4x4(rows, turned[k]);
      }
      std::uint8_t* const column = to + 4 * four * n + first + 16 * chunk;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        *reinterpret_cast<uint4*>(column + c * n) = uint4{turned[0][c], turned[1][c], turned[2][c], turned[3][c]};
    }
    __syncthreads();
  }
};

struct TilePlan {
  RowTiles tiles;
  int blocks = 0;          // of a multiprocessor; 0: no tile fits, the rows are turned over by a kernel of their own
  std::size_t shared = 0;  // bytes of a block: the tile, then what is read ahead
};

// The choice by width, in one place. `ahead(blocks)` is what a block reads ahead, in bytes, where a multiprocessor has
// so many blocks. 64 rows are two of the 32 bytes that memory moves. Two blocks a multiprocessor, one of which reads
// while the other turns, up to about d = 1280; then one of more threads, whose next reads are under way while it
// turns, to about 2560; then half as many rows, where four neighbours share a line, to about 6000. Wider rows are read
// once more.
template <class Ahead>
TilePlan plan_row_tiles(std::int64_t d, const Ahead& ahead) {
  constexpr std::size_t kOwn = 512, kReserved = 1024;  // of the kernel, of the card, a block
  constexpr struct { int blocks, chunk_bits; } kWays[] = {{2, 2}, {1, 2}, {1, 1}};
  int card = 0, of_block = 0, of_multiprocessor = 0;
  REDLINE_CUDA(cudaGetDevice(&card));
  REDLINE_CUDA(cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
  REDLINE_CUDA(cudaDeviceGetAttribute(&of_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, card));
  for (const auto& way : kWays) {
    const RowTiles tiles{way.chunk_bits, static_cast<std::int32_t>(device::cuda::ceil_div<std::int64_t>(d, 128) * 128)};
    const std::size_t shared = static_cast<std::size_t>(tiles.bytes()) + ahead(way.blocks);
    const std::size_t all = (shared + kOwn + kReserved) * static_cast<std::size_t>(way.blocks);
    if (all <= static_cast<std::size_t>(of_multiprocessor) && shared + kOwn <= static_cast<std::size_t>(of_block))
      return {tiles, way.blocks, shared};
  }
  return {};
}

// The format is known at the launch alone: one kernel for both, since casts are not what such kernels wait for.
__device__ inline uint2 cast_8(const device::cuda::Vector<device::cuda::bf16, 8>& x, float scale, bool e5m2) {
  return e5m2 ? cast_8<true>(x, scale) : cast_8<false>(x, scale);
}

// The operands that an op with copies must have beside them.
inline void check_copies(const Fp8Copies<Tensor>& to, std::int64_t n, std::int64_t d) {
  REDLINE_CHECK(to.scale.present() && d % 16 == 0 && (!to.columns.present() || n % 16 == 0),
                "{} x {} are not multiples of 16, or have no scale: no product takes them in eight bits", n, d);
  REDLINE_CHECK(device::cuda::in_vectors(16, {to.rows, to.columns}), "copies in eight bits are not aligned");
}

}  // namespace redline::ops::cuda
