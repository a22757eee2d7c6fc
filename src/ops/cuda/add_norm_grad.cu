// Gradient of RMSNorm, of add_norm and of norm_add, h = dy * w, r what was normalised:
//   dr (+)= rstd * (h - r * rstd^2 * mean(h * r)),   dw (+)= sum over rows of dy * r * rstd.
// A block is one of kRowGroups groups of rows; a thread keeps its columns for all of them, and with them its part of dw.
// kRows rows are in flight at once for each threadIdx.y: their sums share one barrier.
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
// kRowGroups. What comes next is read ahead: without it 3.3 TB/s.
constexpr int kGradThreads = 320, kWideThreads = 512;                           // of a block
constexpr int kLongRow = 192, kWideRow = 2 * kGradThreads, kWideElements = 16;  // rows in vectors

template <class T, int kWidth, int kVectors, int kRows>
using GradReads = CopyAhead<T, kWidth, 3 * kRows * kVectors>;

// With kCasts dresidual in eight bits as well.
template <class T, int kWidth, int kVectors, int kRows, int kThreads, bool kCasts>
__global__ void __launch_bounds__(kThreads, kThreads == kGradThreads ? 2 : 1)
    add_norm_grad(const GradArguments<T> a, const CastTo to) {
  __shared__ float parts[2][kRows][kMaxWarps];
  extern __shared__ __align__(16) std::byte shared[];  // what is read ahead, then dweight of each threadIdx.y: [y, d]
  const std::int32_t step = kRows * static_cast<std::int32_t>(blockDim.y);
  const RowRange rows = rows_of_group(blockIdx.x, a.n, step);
  const std::int32_t d = a.d, count = static_cast<std::int32_t>(rows.end - rows.begin);
  const T *dy_of_group = a.dy + rows.begin * d, *residual = a.residual + rows.begin * d;
  T* dresidual = a.dresidual + rows.begin * d;
  const auto column_of = [](int v) { return static_cast<std::int32_t>((threadIdx.x + v * blockDim.x) * kWidth); };
  const auto row_of = [](std::int32_t first, int k) {
    return static_cast<std::int32_t>(first + k * blockDim.y + threadIdx.y);
  };

  let_next_kernel_start();
  await_kernel_before();
  GradReads<T, kWidth, kVectors, kRows> reads(shared);
  const auto ask = [&](std::int32_t first) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const bool inside = row_of(first, k) < count && column_of(v) < d;
        const std::int32_t at = inside ? row_of(first, k) * d + column_of(v) : 0;
        const int slot = 3 * (k * kVectors + v);
        reads.ask(slot, dy_of_group + at, inside);
        reads.ask(slot + 1, residual + at, inside);
        reads.ask(slot + 2, dresidual + at, inside && a.accumulate);
      }
    }
  };
  ask(0);

  float dweight[kVectors][kWidth] = {};
  [[maybe_unused]] LargestBits largest;
  int buffer = 0;  // sums of one round are still read when the next are written
  for (std::int32_t first = 0; first < count; first += step, buffer ^= 1) {
    const auto inside = [&](int k, int v) { return row_of(first, k) < count && column_of(v) < d; };
    Vector<T, kWidth> dy[kRows][kVectors], r[kRows][kVectors], above[kRows][kVectors];
    float rstd[kRows], product[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) rstd[k] = row_of(first, k) < count ? a.rstd[rows.begin + row_of(first, k)] : 0.0f;
    reads.await();
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int slot = 3 * (k * kVectors + v);
        dy[k][v] = reads.take(slot), r[k][v] = reads.take(slot + 1), above[k][v] = reads.take(slot + 2);
      }
    }
    ask(first + step);
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
          dweight[v][e] += dy[k][v][e] * (r[k][v][e] * rstd[k]);
          // Which products are rounded is said here: a kernel that casts must have the bits of one that does not.
          out[e] = fmaf(rstd[k], fmaf(-slope, r[k][v][e], dy[k][v][e] * w[v][e]), above[k][v][e]);
        }
        if (!inside(k, v)) continue;
        const std::int32_t at = row_of(first, k) * d + column_of(v);
        const auto result = Vector<T, kWidth>::from(out);
        store(dresidual + at, result);
        if constexpr (kCasts) {
          *reinterpret_cast<uint2*>(to.rows + rows.begin * d + at) = cast_8(result, to.scale->scale, to.e5m2);
          largest.add(result);
        }
      }
    }
  }

  if constexpr (kCasts) {
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

template <bool kCasts, class T, int kWidth>
void launch_grad(const AddNormGrad<Tensor>& op, const CastTo& to, const Launch& launch) {
  const std::int64_t d = op.dy.columns(), vectors = d / kWidth;
  const GradArguments<T> arguments{op.dy.as<T>(),
                                   op.residual.as<T>(),
                                   op.weight.as<T>(),
                                   op.rstd.f32(),
                                   op.dresidual.as<T>(),
                                   op.partial.f32(),
                                   op.dy.rows(),
                                   static_cast<std::int32_t>(d),
                                   op.accumulate_residual};
  const auto launch_with = [&]<int kVectors, int kRows, int kThreads>() {
    const std::int64_t threads = whole_warps(ceil_div<std::int64_t>(vectors, kVectors));
    REDLINE_CHECK(threads <= kThreads, "rows of {} elements are too wide for add_norm_grad", d);
    const std::int64_t rows = std::max<std::int64_t>(1, kGradThreads / threads);
    const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows));
    const std::size_t shared = std::max(GradReads<T, kWidth, kVectors, kRows>::bytes(threads * rows),
                                        static_cast<std::size_t>(rows * d) * sizeof(float));
    const auto kernel = add_norm_grad<T, kWidth, kVectors, kRows, kThreads, kCasts>;
    allow_shared(kernel, shared);
    launch_early(launch, kernel, kRowGroups, block, shared, arguments, to);
  };
  if (vectors < kLongRow) {
    launch_with.template operator()<1, 2, kGradThreads>();
  } else if (vectors <= kWideRow) {
    launch_with.template operator()<2, 1, kGradThreads>();
  } else {
    launch_with.template operator()<kWideElements / kWidth, 1, kWideThreads>();
  }
}

}  // namespace

void run(const AddNormGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), d = op.dy.columns();
  const bool vectors = in_vectors(d, {op.dy, op.residual, op.weight, op.dresidual});
  const bool casts = op.fp8.rows.present();
  if (op.fp8.present()) {
    check_copies(op.fp8, n, d);
    REDLINE_CHECK(op.dy.dtype == DType::bf16 && vectors, "{} is not cast to fp8 by add_norm_grad", name_of(op.dy.dtype));
  }
  if (casts) {
    launch_grad<true, bf16, 8>(op, cast_to(op.fp8), launch);
  } else {
    for_type_and_width(op.dy.dtype, vectors,
                       [&]<class T, int kWidth>() { launch_grad<false, T, kWidth>(op, {}, launch); });
  }
  sum_row_groups(op.partial, d, op.dweight.f32(), nullptr, op.accumulate_weight, launch);
  // Columns from the rows, or from the result where nobody asked for rows.
  if (op.fp8.columns.present())
    run(casts ? Quantize<Tensor>{op.fp8.rows, {.columns = op.fp8.columns}} : Quantize<Tensor>{op.dresidual, op.fp8}, launch);
}

}  // namespace redline::ops::cuda
