// Gradient of RMSNorm, of add_norm and of norm_add, h = dy * w, r what was normalised:
//   dr (+)= rstd * (h - r * rstd^2 * mean(h * r)),   dw (+)= sum over rows of dy * r * rstd.
// A block is one of kRowGroups groups of rows; a thread keeps its columns for all of them, and with them its part of
// dw. kRows rows are in flight at once for each threadIdx.y: their sums share one barrier. Where columns in eight bits
// are asked for a block's rows are not a group but tiles (fp8_row_tiles.cuh).
#include <algorithm>

#include "device/cuda/copy_ahead.cuh"
#include "ops/cuda/fp8_row_tiles.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

template <class T>
struct GradArguments {
  const T *dy, *residual, *weight;
  const float* rstd;
  T* dresidual;
  float* partial;
  std::int64_t n;
  std::int32_t d;
  bool accumulate;
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
          for (int e = 0; e < kWidth; ++e) product[k] = fmaf(dy[k][v][e] * w[v][e], r[k][v][e], product[k]);
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
            out[e] = fmaf(rstd[k], fmaf(-slope, r[k][v][e], dy[k][v][e] * w[v][e]), above[k][v][e]);
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
      : a_{op.dy.as<T>(),         op.residual.as<T>(), op.weight.as<T>(), op.rstd.f32(),
           op.dresidual.as<T>(),  op.partial.f32(),    op.dy.rows(),      static_cast<std::int32_t>(op.dy.columns()),
           op.accumulate_residual},
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
// result where nobody asked for rows.
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

}  // namespace

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

}  // namespace redline::ops::cuda
