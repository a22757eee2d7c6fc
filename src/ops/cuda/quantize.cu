// Copies in eight bits: rows = cast(x * scale), columns = rows turned over; amax = max(amax, |x|).
// A block has a tile of 128 rows and 64 columns, a warp 16 rows of it and all of its lanes' loads under way at once; the
// columns go through shared memory (fp8_casts.cuh). Weights have their largest magnitude first, by a kernel whose last block
// makes the scale of it.
#include <algorithm>

#include "base/small_floats.h"
#include "base/step_state.h"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kTileRows = TileThread::kRows, kThreads = TileThread::kThreads;

// Eight elements of a row, in eight bits.
template <bool kE5m2>
__device__ uint2 eight(const bf16* from, bool inside, float scale, LargestBits& largest) {
  const auto x = inside ? load_once<8>(from) : Vector<bf16, 8>{};
  largest.add(x);
  return cast_8<kE5m2>(x, scale);
}
template <bool kE5m2>
__device__ uint2 eight(const std::uint8_t* from, bool inside, float, LargestBits&) {
  return inside ? __ldcs(reinterpret_cast<const uint2*>(from)) : uint2{};
}

template <class T, bool kE5m2>
__global__ void __launch_bounds__(kThreads)
    quantize(const T* x, const CastTo to, std::int64_t n, std::int32_t d) {
  __shared__ TurnedTile<kTileRows> tile;
  const auto [row, column] = TileThread();
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int32_t first_column = static_cast<std::int32_t>(blockIdx.x) * kTileColumns;
  const float scale = to.scale ? to.scale->scale : 1.0f;
  LargestBits largest;
  largest.start(to.amax);
  uint2 bytes[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t at = first_row + row + r;
    const bool inside = at < n && first_column + column < d;
    bytes[r] = eight<kE5m2>(x + at * d + first_column + column, inside, scale, largest);
  }
  if (to.rows) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::int64_t at = first_row + row + r;
      if (at < n && first_column + column < d)
        *reinterpret_cast<uint2*>(to.rows + at * d + first_column + column) = bytes[r];
    }
  }
  if (to.amax) largest.record(to.amax);
  if (!to.columns) return;
  tile.put(row, column, bytes);
  __syncthreads();
  tile.store(to.columns, first_row, first_column, n, d, static_cast<int>(threadIdx.x), kThreads);
}

void launch_quantize(const Tensor& x, const CastTo& to, cudaStream_t stream) {
  const std::int64_t n = x.rows(), d = x.columns();
  REDLINE_CHECK((n % 16 == 0 || !to.columns) && d % 16 == 0, "{} x {} are not multiples of 16: no product takes them in eight bits", n, d);
  const dim3 blocks(blocks_for(d, kTileColumns), blocks_for(n, kTileRows));
  REDLINE_CHECK(blocks.y < 65536, "{} rows are too many", n);
  const auto d32 = static_cast<std::int32_t>(d);
  if (is_fp8(x.dtype)) {
    REDLINE_CHECK(!to.rows && to.columns, "what is in fp8 can only be turned over");
    quantize<std::uint8_t, false><<<blocks, kThreads, 0, stream>>>(x.as<std::uint8_t>(), to, n, d32);
  } else {
    REDLINE_CHECK(x.dtype == DType::bf16, "{} is not cast to fp8", name_of(x.dtype));
    const auto kernel = to.e5m2 ? quantize<bf16, true> : quantize<bf16, false>;
    kernel<<<blocks, kThreads, 0, stream>>>(x.as<bf16>(), to, n, d32);
  }
  REDLINE_LAUNCHED();
}

__device__ Fp8Scale entry(float amax, float target) {
  Fp8Scale s{};
  s.amax = amax;
  s.scale = scale_for(amax, target);
  s.inverse = 1.0f / s.scale;
  return s;
}

// While it runs, the entry's history holds the largest so far and how many blocks are done.
__global__ void __launch_bounds__(kThreads) scale_of(const bf16* x, std::int64_t vectors, Fp8Scale* scale, float target) {
  LargestBits largest;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    largest.add(load<8>(x + 8 * i));
  float* const so_far = scale->history;
  largest.record(so_far);
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  unsigned* const done = reinterpret_cast<unsigned*>(scale->history + 1);
  if (atomicAdd(done, 1u) + 1 < gridDim.x) return;
  __threadfence();
  *scale = entry(__int_as_float(atomicMax(reinterpret_cast<int*>(so_far), 0)), target);
}

// One block: d is a few thousand.
__global__ void __launch_bounds__(1024) bound_scale(const bf16* weight, std::int32_t d, Fp8Scale* scale) {
  __shared__ float parts[kMaxWarps];
  float most = 0;
  for (std::int32_t i = threadIdx.x; i < d; i += blockDim.x) most = fmaxf(most, fabsf(__bfloat162float(weight[i])));
  most = row_max(most, parts);
  if (threadIdx.x == 0) *scale = entry(sqrtf(static_cast<float>(d)) * most, kE4m3.largest);
}

__global__ void __launch_bounds__(256)
    move_scales(Fp8Scale* scales, float* amax, std::int32_t entries, const UpdateResult* result, float target) {
  const std::int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  const bool made = !result || result->finite == 1.0f;
  if (made) move(scales[i], amax[i], target);
  amax[i] = 0;
}

}  // namespace

void run(const Quantize<Tensor>& op, const Launch& launch) { launch_quantize(op.x, cast_to(op.to), launch.stream); }

void run(const QuantizeWeight<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.weight.dtype == DType::bf16 && op.weight.elements() % 8 == 0, "no cast of {} {}",
                name_of(op.weight.dtype), op.weight.shape.str());
  const std::int64_t vectors = op.weight.elements() / 8;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(4 * launch.multiprocessors, ceil_div<std::int64_t>(vectors, 4 * kThreads)));
  const Fp8Copies<Tensor> to{op.rows, op.columns, op.scale, {}};
  scale_of<<<blocks, kThreads, 0, launch.stream>>>(
      op.weight.as<bf16>(), vectors, op.scale.as<Fp8Scale>(),
      fp8_format(op.rows.present() ? op.rows.dtype : op.columns.dtype).largest);
  REDLINE_LAUNCHED();
  launch_quantize(op.weight, cast_to(to), launch.stream);
}

void run(const BoundScale<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.weight.dtype == DType::bf16, "weights of a norm in {}", name_of(op.weight.dtype));
  bound_scale<<<1, 1024, 0, launch.stream>>>(op.weight.as<bf16>(), static_cast<std::int32_t>(op.weight.elements()),
                                             op.scale.as<Fp8Scale>());
  REDLINE_LAUNCHED();
}

void run(const MoveScales<Tensor>& op, const Launch& launch) {
  const std::int64_t entries = op.amax.elements();
  move_scales<<<blocks_for(entries, 256), 256, 0, launch.stream>>>(op.scales.as<Fp8Scale>(), op.amax.f32(),
                                                                   static_cast<std::int32_t>(entries),
                                                                   op.result.as<UpdateResult>(), op.target);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
