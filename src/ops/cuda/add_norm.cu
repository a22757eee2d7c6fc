// Residual add and RMSNorm:  r = residual_in + branch;  rstd = 1 / sqrt(mean(r^2) + eps);  y = r * rstd * w.
// RMSNorm of a branch and its addition:  rstd = 1 / sqrt(mean(branch^2) + eps);  out = r + branch * rstd * w.
// Forward, a row is blockDim.x threads with up to kVectors vectors each, held in registers between sum and product.
// Where columns in eight bits are asked for a block has tiles of rows (RowTiles), blockDim.y of them at once, and reads
// ahead.
// Gradient of both, h = dy * w, r what was normalised:
//   dr (+)= rstd * (h - r * rstd^2 * mean(h * r)),   dw (+)= sum over rows of dy * r * rstd.
// Backward, a block is one of kRowGroups groups of rows; a thread keeps its columns for all of them, and with them its
// part of dw. kRows rows are in flight at once for each threadIdx.y: their sums share one barrier. Where columns in
// eight bits are asked for a block's rows are not a group but tiles.
// A plain sum, y = a + b, is added in fp32. One thread has one vector.
#include <algorithm>

#include "device/cuda/overlap.cuh"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

// Rows of up to 8192 elements.
template <int kWidth>
constexpr int kVectorsOfThread = kWidth == 1 ? 8 : 4;
template <int kWidth>
constexpr int kRowThreads = kWidth == 1 ? 1024 : 512;

template <class T>
struct NormArguments {
  const T *residual_in, *branch, *weight;
  T *residual_out, *y;
  float* rstd;
  std::int64_t n;
  std::int32_t d;
  float eps, plus;  // the latter is added to every weight: 0 or 1
};

// A thread's part of the sum of squares; with kAddFirst `from` becomes the sum of both.
template <bool kAddFirst, class T, int kWidth, int kVectors>
__device__ float squares_of(Vector<T, kWidth> (&from)[kVectors], const Vector<T, kWidth> (&added)[kVectors]) {
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kAddFirst) {
      float sum[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] = from[v][e] + added[v][e];
      from[v] = Vector<T, kWidth>::from(sum);  // the norm is of what is stored: that is what the backward pass will see
    }
    const Vector<T, kWidth>& normed = kAddFirst ? from[v] : added[v];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) squares = fmaf(normed[e], normed[e], squares);
  }
  return squares;
}

// add_norm with kAddFirst, else norm_add, which has no y. With kCasts y in eight bits as well, or instead.
template <class T, int kWidth, bool kAddFirst, bool kCasts>
__global__ void __launch_bounds__(kRowThreads<kWidth>) residual_norm(const NormArguments<T> a, const CastTo to) {
  constexpr int kVectors = kVectorsOfThread<kWidth>;
  __shared__ float parts[kMaxWarps];
  const std::int32_t d = a.d;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const auto column_of = [](int v) { return static_cast<std::int32_t>((threadIdx.x + v * blockDim.x) * kWidth); };
  const auto inside = [&](int v) { return row < a.n && column_of(v) < d; };

  Vector<T, kWidth> from[kVectors], added[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    from[v] = inside(v) ? load<kWidth>(a.residual_in + row * d + column_of(v)) : Vector<T, kWidth>{};
    added[v] = a.branch && inside(v) ? load<kWidth>(a.branch + row * d + column_of(v)) : Vector<T, kWidth>{};
  }
  [[maybe_unused]] const float scale = kCasts ? to.scale->scale : 0.0f;
  const float squares = squares_of<kAddFirst>(from, added);
  const float rstd = rsqrtf(row_sum(squares, parts) / static_cast<float>(d) + a.eps);
  if (row < a.n && threadIdx.x == 0) a.rstd[row] = rstd;
  [[maybe_unused]] LargestBits largest;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!inside(v)) continue;
    const std::int64_t at = row * d + column_of(v);
    const auto w = load<kWidth>(a.weight + column_of(v));
    float out[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      out[e] = kAddFirst ? from[v][e] * rstd * (w[e] + a.plus) : from[v][e] + added[v][e] * rstd * (w[e] + a.plus);
    if (kAddFirst && a.branch) store(a.residual_out + at, from[v]);
    const auto result = Vector<T, kWidth>::from(out);
    T* const kept = kAddFirst ? a.y : a.residual_out;
    if (!kCasts || kept) store(kept + at, result);
    if constexpr (kCasts) {
      *reinterpret_cast<uint2*>(to.rows + at) = cast_8(result, scale, to.e5m2);
      largest.add(result);
    }
  }
  if constexpr (kCasts) {
    if (to.amax) largest.record(to.amax);
  }
}

constexpr int kTileThreads = 512;  // of a multiprocessor
constexpr int kTileVectors = kVectorsOfThread<8>;
using TileReads = CopyAhead<bf16, 8, 2 * kTileVectors>;

// add_norm with y in eight bits by columns, and by rows where they are asked for. Sums are as above: the same bits.
__global__ void __launch_bounds__(kTileThreads)
    add_norm_tiles(const NormArguments<bf16> a, const CastTo to, const RowTiles tiles) {
  __shared__ float parts[2][kMaxWarps];
  extern __shared__ __align__(16) std::byte shared[];  // the tile, then what is read ahead
  const std::int32_t d = a.d, step = static_cast<std::int32_t>(blockDim.y);
  const auto column_of = [](int v) { return static_cast<std::int32_t>((threadIdx.x + v * blockDim.x) * 8); };
  const auto row_of = [](std::int32_t first) { return static_cast<std::int32_t>(first + threadIdx.y); };

  TileReads reads(shared + tiles.bytes());
  const auto ask = [&](RowRun run, std::int32_t first) {
#pragma unroll
    for (int v = 0; v < kTileVectors; ++v) {
      const bool inside = row_of(first) < run.count && column_of(v) < d;
      const std::int64_t at = inside ? (run.begin + row_of(first)) * d + column_of(v) : 0;
      reads.ask(2 * v, a.residual_in + at, inside);
      reads.ask(2 * v + 1, a.branch + at, inside && a.branch);
    }
  };
  RowRun run = tiles.run_of_block(0, a.n);
  ask(run, 0);

  const float scale = to.scale->scale;
  LargestBits largest;
  int buffer = 0;  // sums of one round are still read when the next are written
  for (std::int32_t tile = 1; run.count > 0; ++tile) {
    const RowRun next = tiles.run_of_block(tile, a.n);
    for (std::int32_t first = 0; first < run.count; first += step, buffer ^= 1) {
      Vector<bf16, 8> from[kTileVectors], added[kTileVectors];
      reads.await();
#pragma unroll
      for (int v = 0; v < kTileVectors; ++v) from[v] = reads.take(2 * v), added[v] = reads.take(2 * v + 1);
      const bool last = first + step >= run.count;
      ask({last ? next.begin : run.begin, last ? next.count : run.count}, last ? 0 : first + step);

      const float squares = squares_of<true>(from, added);
      const float rstd = rsqrtf(row_sum(squares, parts[buffer]) / static_cast<float>(d) + a.eps);
      const std::int32_t row = row_of(first);
      if (row >= run.count) continue;
      if (threadIdx.x == 0) a.rstd[run.begin + row] = rstd;
#pragma unroll
      for (int v = 0; v < kTileVectors; ++v) {
        if (column_of(v) >= d) continue;
        const std::int64_t at = (run.begin + row) * d + column_of(v);
        const auto w = load<8>(a.weight + column_of(v));
        float out[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) out[e] = from[v][e] * rstd * (w[e] + a.plus);
        const auto result = Vector<bf16, 8>::from(out);
        const uint2 bytes = cast_8(result, scale, to.e5m2);
        if (a.branch) store(a.residual_out + at, from[v]);
        if (a.y) store(a.y + at, result);
        if (to.rows) *reinterpret_cast<uint2*>(to.rows + at) = bytes;
        tiles.put(shared, row, column_of(v), bytes);
        largest.add(result);
      }
    }
    tiles.store_columns(shared, to.columns, run.begin, a.n, d);
    run = next;
  }
  if (to.amax) largest.record(to.amax);
}

template <class T>
NormArguments<T> arguments_of(const Tensor& residual_in, const Tensor& branch, const Tensor& weight,
                              const Tensor& residual_out, const Tensor& y, const Tensor& rstd, float eps,
                              bool one_plus) {
  return {residual_in.as<T>(),
          branch.as<T>(),
          weight.as<T>(),
          residual_out.as<T>(),
          y.as<T>(),
          rstd.f32(),
          residual_in.rows(),
          static_cast<std::int32_t>(residual_in.columns()),
          eps,
          one_plus ? 1.0f : 0.0f};
}

template <bool kAddFirst, bool kCasts, class T, int kWidth>
void launch_norm(const NormArguments<T>& a, const CastTo& to, cudaStream_t stream) {
  const std::int64_t threads = whole_warps(ceil_div<std::int64_t>(a.d / kWidth, kVectorsOfThread<kWidth>));
  REDLINE_CHECK(threads <= kRowThreads<kWidth>, "rows of {} elements are too wide for a norm", a.d);
  const std::int64_t rows = std::max<std::int64_t>(1, 128 / threads);
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows));
  residual_norm<T, kWidth, kAddFirst, kCasts><<<blocks_for(a.n, rows), block, 0, stream>>>(a, to);
  REDLINE_LAUNCHED();
}

template <bool kAddFirst>
void launch_norm(const Tensor& residual_in, const Tensor& branch, const Tensor& weight, const Tensor& residual_out,
                 const Tensor& y, const Tensor& rstd, float eps, bool one_plus, cudaStream_t stream) {
  const bool vectors = in_vectors(residual_in.columns(), {residual_in, branch, weight, residual_out, y});
  for_type_and_width(residual_in.dtype, vectors, [&]<class T, int kWidth>() {
    launch_norm<kAddFirst, false, T, kWidth>(
        arguments_of<T>(residual_in, branch, weight, residual_out, y, rstd, eps, one_plus), {}, stream);
  });
}

// Whether there are tiles for such rows; nothing is launched otherwise.
bool launch_tiles(const NormArguments<bf16>& a, const CastTo& to, const Launch& launch) {
  const std::int64_t threads = whole_warps(ceil_div<std::int64_t>(a.d / 8, kTileVectors));
  const auto rows = [&](int blocks) { return std::max<std::int64_t>(1, kTileThreads / blocks / threads); };
  const TilePlan plan = plan_row_tiles(a.d, [&](int blocks) { return TileReads::bytes(threads * rows(blocks)); });
  if (plan.blocks == 0) return false;
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows(plan.blocks)));
  const unsigned blocks =
      std::min(blocks_for(a.n, plan.tiles.rows()), static_cast<unsigned>(plan.blocks * launch.multiprocessors));
  allow_shared(add_norm_tiles, plan.shared);
  add_norm_tiles<<<blocks, block, plan.shared, launch.stream>>>(a, to, plan.tiles);
  REDLINE_LAUNCHED();
  return true;
}

// Rows by the kernel that has them. Columns too, but where rows are too wide for tiles: from the rows then, or from y
// where no rows are asked for.
void launch_casting(const AddNorm<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.residual_in.rows(), d = op.residual_in.columns();
  check_copies(op.fp8, n, d);
  REDLINE_CHECK(op.residual_in.dtype == DType::bf16 &&
                    in_vectors(d, {op.residual_in, op.branch, op.weight, op.residual_out, op.y}),
                "{} is not cast to fp8 by add_norm", name_of(op.residual_in.dtype));
  const auto a =
      arguments_of<bf16>(op.residual_in, op.branch, op.weight, op.residual_out, op.y, op.rstd, op.eps, op.one_plus);
  const CastTo to = cast_to(op.fp8);
  if (to.columns && launch_tiles(a, to, launch)) return;
  if (to.rows) {
    launch_norm<true, true, bf16, 8>(a, to, launch.stream);
    if (to.columns) run(Quantize<Tensor>{op.fp8.rows, {.columns = op.fp8.columns}}, launch);
  } else {
    REDLINE_CHECK(op.y.present(), "rows of {} elements are too wide for columns alone", d);
    launch_norm<true, false, bf16, 8>(a, {}, launch.stream);
    run(Quantize<Tensor>{op.y, op.fp8}, launch);
  }
}

template <class T>
struct GradArguments {
  const T *dy, *residual, *weight;
  const float* rstd;
  T* dresidual;
  float* partial;
  std::int64_t n;
  std::int32_t d;
  bool accumulate;
  float plus;  // added to every weight: 0 or 1
};

// A thread has one vector of two rows at a time, or two of one row (1.5% faster with rows of 2048 and 2304, but 0.7%
// slower with 768), or, where a row is wider than that, kWideElements of it. Two blocks a multiprocessor: 2 x 132 are
// kRowGroups. The next rows are read ahead: without it 3.3 TB/s.
constexpr int kGradThreads = 320, kWideThreads = 512;                           // of a block
constexpr int kLongRow = 192, kWideRow = 2 * kGradThreads, kWideElements = 16;  // rows in vectors

template <class T, int kWidth, int kVectors, int kRows>
using GradReads = CopyAhead<T, kWidth, 3 * kRows * kVectors>;

// The copies of dresidual in eight bits.
enum class Casts { none, rows, columns /* and rows, where they are asked for */ };

template <class T, int kWidth, int kVectors, int kRows, int kThreads, Casts kCasts>
__global__ void __launch_bounds__(kThreads, kThreads == kGradThreads ? 2 : 1)
    add_norm_grad(const GradArguments<T> a, const CastTo to, const RowTiles tiles) {
  __shared__ float parts[2][kRows][kMaxWarps];
  // The tile, if there is one, and what is read ahead; then dweight of each threadIdx.y: [y, d].
  extern __shared__ __align__(16) std::byte shared[];
  const std::int32_t d = a.d, step = kRows * static_cast<std::int32_t>(blockDim.y);
  const auto run_of_block = [&](std::int32_t index) -> RowRun {
    if constexpr (kCasts == Casts::columns) {
      return tiles.run_of_block(index, a.n);
    } else {
      const RowRange rows = rows_of_group(blockIdx.x, a.n, step);
      return {rows.begin, index == 0 ? static_cast<std::int32_t>(rows.end - rows.begin) : 0};
    }
  };
  const auto column_of = [](int v) { return static_cast<std::int32_t>((threadIdx.x + v * blockDim.x) * kWidth); };
  const auto row_of = [](std::int32_t first, int k) {
    return static_cast<std::int32_t>(first + k * blockDim.y + threadIdx.y);
  };

  let_next_kernel_start();
  await_kernel_before();
  GradReads<T, kWidth, kVectors, kRows> reads(shared + (kCasts == Casts::columns ? tiles.bytes() : 0));
  const auto ask = [&](RowRun run, std::int32_t first) {
    const std::int64_t begin = run.begin * d;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool inside = row_of(first, k) < run.count && column_of(v) < d;
        const std::int32_t at = inside ? row_of(first, k) * d + column_of(v) : 0;
        const int slot = 3 * (k * kVectors + v);
        reads.ask(slot, a.dy + begin + at, inside);
        reads.ask(slot + 1, a.residual + begin + at, inside);
        reads.ask(slot + 2, a.dresidual + begin + at, inside && a.accumulate);
      }
    }
  };
  RowRun run = run_of_block(0);
  ask(run, 0);

  float dweight[kVectors][kWidth] = {};
  [[maybe_unused]] LargestBits largest;
  [[maybe_unused]] const float scale = kCasts == Casts::none ? 0.0f : to.scale->scale;
  int buffer = 0;  // sums of one round are still read when the next are written
  for (std::int32_t index = 1; run.count > 0; ++index) {
    const RowRun next = run_of_block(index);
    for (std::int32_t first = 0; first < run.count; first += step, buffer ^= 1) {
      const auto inside = [&](int k, int v) { return row_of(first, k) < run.count && column_of(v) < d; };
      Vector<T, kWidth> dy[kRows][kVectors], r[kRows][kVectors], above[kRows][kVectors];
      float rstd[kRows], product[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k)
        rstd[k] = row_of(first, k) < run.count ? a.rstd[run.begin + row_of(first, k)] : 0.0f;
      reads.await();
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int slot = 3 * (k * kVectors + v);
          dy[k][v] = reads.take(slot), r[k][v] = reads.take(slot + 1), above[k][v] = reads.take(slot + 2);
        }
      }
      const bool last = first + step >= run.count;
      ask({last ? next.begin : run.begin, last ? next.count : run.count}, last ? 0 : first + step);
      Vector<T, kWidth> w[kVectors];  // from the first-level cache: a round is long enough
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        w[v] = column_of(v) < d ? load<kWidth>(a.weight + column_of(v)) : Vector<T, kWidth>{};
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        product[k] = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
#pragma unroll
          for (int e = 0; e < kWidth; ++e) product[k] = fmaf(dy[k][v][e] * (w[v][e] + a.plus), r[k][v][e], product[k]);
        }
        product[k] = warp_sum(product[k]);
      }
      const int warps = static_cast<int>(blockDim.x) / kWarp;
      if (warps > 1) {
        const int row = static_cast<int>(threadIdx.y) * warps;
        if (threadIdx.x % kWarp == 0) {
#pragma unroll
          for (int k = 0; k < kRows; ++k) parts[buffer][k][row + threadIdx.x / kWarp] = product[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          product[k] = 0;
          for (int warp = 0; warp < warps; ++warp) product[k] += parts[buffer][k][row + warp];
        }
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const float slope = product[k] * rstd[k] * rstd[k] / static_cast<float>(d);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float out[kWidth];
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            // Explicit fmaf fixes the rounding: a kernel that casts must have the bits of one that does not.
            dweight[v][e] = fmaf(dy[k][v][e], r[k][v][e] * rstd[k], dweight[v][e]);
            out[e] = fmaf(rstd[k], fmaf(-slope, r[k][v][e], dy[k][v][e] * (w[v][e] + a.plus)), above[k][v][e]);
          }
          if (!inside(k, v)) continue;
          const std::int64_t at = run.begin * d + row_of(first, k) * d + column_of(v);
          const auto result = Vector<T, kWidth>::from(out);
          store(a.dresidual + at, result);
          if constexpr (kCasts != Casts::none) {
            const uint2 bytes = cast_8(result, scale, to.e5m2);
            if (kCasts == Casts::rows || to.rows) *reinterpret_cast<uint2*>(to.rows + at) = bytes;
            if (kCasts == Casts::columns) tiles.put(shared, row_of(first, k), column_of(v), bytes);
            largest.add(result);
          }
        }
      }
    }
    if constexpr (kCasts == Casts::columns) tiles.store_columns(shared, to.columns, run.begin, a.n, d);
    run = next;
  }

  if constexpr (kCasts != Casts::none) {
    if (to.amax) largest.record(to.amax);
  }
  sum_over_block_rows(shared, d, a.partial, [&](float* to) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (column_of(v) < d) to[column_of(v) + e] = dweight[v][e];
      }
    }
  });
}

template <class T, int kWidth>
class GradLaunch {
 public:
  GradLaunch(const AddNormGrad<Tensor>& op, const Launch& launch)
      : a_{op.dy.as<T>(),          op.residual.as<T>(),
           op.weight.as<T>(),      op.rstd.f32(),
           op.dresidual.as<T>(),   op.partial.f32(),
           op.dy.rows(),           static_cast<std::int32_t>(op.dy.columns()),
           op.accumulate_residual, op.one_plus ? 1.0f : 0.0f},
        launch_(launch) {}

  // In groups of rows.
  template <Casts kCasts>
  void in_groups(const CastTo& to) const {
    const auto with = [&]<int kVectors, int kRows, int kThreads>() {
      REDLINE_CHECK(threads(kVectors) <= kThreads, "rows of {} elements are too wide for add_norm_grad", a_.d);
      const dim3 block = block_of(kVectors, kGradThreads);
      start<kVectors, kRows, kThreads, kCasts>(kRowGroups, block, ahead<kVectors, kRows>(block), to, {});
    };
    if (vectors() < kLongRow) {
      with.template operator()<1, 2, kGradThreads>();
    } else if (vectors() <= kWideRow) {
      with.template operator()<2, 1, kGradThreads>();
    } else {
      with.template operator()<kWideElements / kWidth, 1, kWideThreads>();
    }
  }

  // In tiles, if two blocks a multiprocessor have room for them: what a thread has of a row must be what it has in
  // groups. With one block of more threads rows of 2304 took 381 us; from groups, and turned over by another kernel,
  // 329.
  bool in_tiles(const CastTo& to) const {
    const auto with = [&]<int kVectors, int kRows>() {
      if (threads(kVectors) > kGradThreads) return false;
      const dim3 block = block_of(kVectors, kGradThreads);
      const TilePlan plan = plan_row_tiles(a_.d, [&](int) { return ahead<kVectors, kRows>(block); });
      if (plan.blocks != 2) return false;
      start<kVectors, kRows, kGradThreads, Casts::columns>(kRowGroups, block, plan.shared, to, plan.tiles);
      return true;
    };
    return vectors() < kLongRow ? with.template operator()<1, 2>() : with.template operator()<2, 1>();
  }

 private:
  std::int64_t vectors() const { return a_.d / kWidth; }
  std::int64_t threads(int of_row) const { return whole_warps(ceil_div<std::int64_t>(vectors(), of_row)); }
  dim3 block_of(int of_row, int most) const {
    const std::int64_t x = threads(of_row);
    return dim3(static_cast<unsigned>(x), static_cast<unsigned>(std::max<std::int64_t>(1, most / x)));
  }
  template <int kVectors, int kRows>
  std::size_t ahead(const dim3& block) const {
    return GradReads<T, kWidth, kVectors, kRows>::bytes(block.x * block.y);
  }
  template <int kVectors, int kRows, int kThreads, Casts kCasts>
  void start(unsigned blocks, const dim3& block, std::size_t shared, const CastTo& to, const RowTiles& tiles) const {
    const auto kernel = add_norm_grad<T, kWidth, kVectors, kRows, kThreads, kCasts>;
    shared = std::max(shared, static_cast<std::size_t>(block.y) * static_cast<std::size_t>(a_.d) * sizeof(float));
    allow_shared(kernel, shared);
    launch_early(launch_, kernel, blocks, block, shared, a_, to, tiles);
  }

  GradArguments<T> a_;
  const Launch& launch_;
};

// Rows by the kernel that has them. Columns too, but where rows are too wide for tiles: from the rows then, or from the
// result where no rows are asked for.
void run_casting(const AddNormGrad<Tensor>& op, const Launch& launch) {
  const CastTo to = cast_to(op.fp8);
  const GradLaunch<bf16, 8> grad(op, launch);
  if (to.columns && grad.in_tiles(to)) return;
  if (to.rows)
    grad.in_groups<Casts::rows>(to);
  else
    grad.in_groups<Casts::none>({});
  if (!to.columns) return;
  run(to.rows ? Quantize<Tensor>{op.fp8.rows, {.columns = op.fp8.columns}} : Quantize<Tensor>{op.dresidual, op.fp8},
      launch);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) add(const T* a, const T* b, T* y, std::int64_t n, std::int32_t d) {
  const Place at = place_of_thread<kWidth>(n, d);
  if (!at.inside) return;
  const std::int64_t i = at.row * d + at.column;
  const auto left = load_once<kWidth>(a + i), right = load_once<kWidth>(b + i);
  float sum[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum[e] = left[e] + right[e];
  store(y + i, Vector<T, kWidth>::from(sum));
}

}  // namespace

void run(const AddNorm<Tensor>& op, const Launch& launch) {
  if (op.fp8.present()) return launch_casting(op, launch);
  launch_norm<true>(op.residual_in, op.branch, op.weight, op.residual_out, op.y, op.rstd, op.eps, op.one_plus,
                    launch.stream);
}

void run(const NormAdd<Tensor>& op, const Launch& launch) {
  launch_norm<false>(op.residual_in, op.branch, op.weight, op.residual_out, {}, op.rstd, op.eps, op.one_plus,
                     launch.stream);
}

void run(const AddNormGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), d = op.dy.columns();
  const bool vectors = in_vectors(d, {op.dy, op.residual, op.weight, op.dresidual});
  if (op.fp8.present()) {
    check_copies(op.fp8, n, d);
    REDLINE_CHECK(op.dy.dtype == DType::bf16 && vectors, "{} is not cast to fp8 by add_norm_grad",
                  name_of(op.dy.dtype));
    run_casting(op, launch);
  } else {
    for_type_and_width(op.dy.dtype, vectors, [&]<class T, int kWidth>() {
      GradLaunch<T, kWidth>(op, launch).template in_groups<Casts::none>({});
    });
  }
  sum_row_groups(op.partial, d, op.dweight.f32(), nullptr, op.accumulate_weight, launch);
}

void run(const Add<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.y.rows(), d = op.y.columns();
  for_type_and_width(op.y.dtype, in_vectors(d, {op.a, op.b, op.y}), [&]<class T, int kWidth>() {
    add<T, kWidth><<<place_blocks(n, d, kWidth), kPlaceThreads, 0, launch.stream>>>(
        op.a.as<T>(), op.b.as<T>(), op.y.as<T>(), n, static_cast<std::int32_t>(d));
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
