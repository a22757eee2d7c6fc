// Residual add and RMSNorm:  r = residual_in + branch;  rstd = 1 / sqrt(mean(r^2) + eps);  y = r * rstd * w.
// RMSNorm of a branch and its addition:  rstd = 1 / sqrt(mean(branch^2) + eps);  out = r + branch * rstd * w.
// A row is blockDim.x threads with up to kVectors vectors each, held in registers between sum and product. Where
// columns in eight bits are asked for a block has tiles of rows (fp8_row_tiles.cuh), blockDim.y of them at once, and
// reads ahead.
#include <algorithm>

#include "device/cuda/copy_ahead.cuh"
#include "ops/cuda/fp8_row_tiles.cuh"
#include "ops/cuda/kernels.h"

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
  float eps;
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
      out[e] = kAddFirst ? from[v][e] * rstd * w[e] : from[v][e] + added[v][e] * rstd * w[e];
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
        for (int e = 0; e < 8; ++e) out[e] = from[v][e] * rstd * w[e];
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
                              const Tensor& residual_out, const Tensor& y, const Tensor& rstd, float eps) {
  return {residual_in.as<T>(),
          branch.as<T>(),
          weight.as<T>(),
          residual_out.as<T>(),
          y.as<T>(),
          rstd.f32(),
          residual_in.rows(),
          static_cast<std::int32_t>(residual_in.columns()),
          eps};
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
                 const Tensor& y, const Tensor& rstd, float eps, cudaStream_t stream) {
  const bool vectors = in_vectors(residual_in.columns(), {residual_in, branch, weight, residual_out, y});
  for_type_and_width(residual_in.dtype, vectors, [&]<class T, int kWidth>() {
    launch_norm<kAddFirst, false, T, kWidth>(arguments_of<T>(residual_in, branch, weight, residual_out, y, rstd, eps),
                                             {}, stream);
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
// where nobody asked for rows.
void launch_casting(const AddNorm<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.residual_in.rows(), d = op.residual_in.columns();
  check_copies(op.fp8, n, d);
  REDLINE_CHECK(op.residual_in.dtype == DType::bf16 &&
                    in_vectors(d, {op.residual_in, op.branch, op.weight, op.residual_out, op.y}),
                "{} is not cast to fp8 by add_norm", name_of(op.residual_in.dtype));
  const auto a = arguments_of<bf16>(op.residual_in, op.branch, op.weight, op.residual_out, op.y, op.rstd, op.eps);
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

}  // namespace

void run(const AddNorm<Tensor>& op, const Launch& launch) {
  if (op.fp8.present()) return launch_casting(op, launch);
  launch_norm<true>(op.residual_in, op.branch, op.weight, op.residual_out, op.y, op.rstd, op.eps, launch.stream);
}

void run(const NormAdd<Tensor>& op, const Launch& launch) {
  launch_norm<false>(op.residual_in, op.branch, op.weight, op.residual_out, {}, op.rstd, op.eps, launch.stream);
}

}  // namespace redline::ops::cuda
