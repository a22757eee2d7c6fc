// Columns in eight bits from kernels that have whole rows at a time, as norms do. A block has tiles of 64 rows, or 32,
// and all their columns, in shared memory as they lie; when a tile is full its threads turn it over, 16 rows of four
// columns each, and write 64 bytes of a column together. Blocks take the tiles in turn: those that are under way at
// one time are neighbours, so the lines that two of them share are whole before they leave the second-level cache.
//
// Neither way meets in a bank: a row's units of eight bytes change places among 16 of them, by the group of 16 rows
// that it is in. A warp writes units of one row; it reads words of all groups, and of as many fewer columns.
#pragma once

#include <cstddef>

#include "ops/cuda/fp8_casts.cuh"

namespace redline::ops::cuda {

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
  std::size_t shared = 0;  // bytes of a block: the tile, and behind it what is read ahead
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
