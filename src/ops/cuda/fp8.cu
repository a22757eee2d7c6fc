// Copies in eight bits: rows = cast(x * scale), columns = rows turned over; amax = max(amax, |x|). A block has two
// tiles of 128 rows and 64 columns, a warp 16 rows of them and all of its lanes' loads under way at once; the columns
// go through shared memory (fp8_casts.cuh). Weights have their largest magnitude first, by a kernel whose last block
// makes the scale of it.
// Counts over the codes of a copy: four in a word, compared byte by byte. A thread has 16 bytes at a time, the threads
// of a grid one after the other. A warp adds up, and its first lane adds to memory, in integers: the order does not
// matter.
#include <algorithm>

#include "base/small_floats.h"
#include "base/step_state.h"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kTileRows = TileThread::kRows, kThreads = TileThread::kThreads;
constexpr int kTiles = 2;  // of a block, beside each other

// Eight elements of a row, and what they are in eight bits.
template <class T>
struct Eight;
template <>
struct Eight<bf16> {
  Vector<bf16, 8> x;
  __device__ static Eight load(const bf16* from, bool inside) {
    return {inside ? load_once<8>(from) : Vector<bf16, 8>{}};
  }
  template <bool kE5m2>
  __device__ uint2 cast(float scale, LargestBits& largest) const {
    largest.add(x);
    return cast_8<kE5m2>(x, scale);
  }
};
template <>
struct Eight<std::uint8_t> {
  uint2 x;
  __device__ static Eight load(const std::uint8_t* from, bool inside) {
    return {inside ? __ldcs(reinterpret_cast<const uint2*>(from)) : uint2{}};
  }
  template <bool kE5m2>
  __device__ uint2 cast(float, LargestBits&) const {
    return x;
  }
};

// Of many matrices blocks in z have one each, with a scale of its own.
template <class T, bool kE5m2, bool kMany>
__global__ void __launch_bounds__(kThreads, 4)
    quantize(const T* x, std::int64_t stride, CastTo to, std::int64_t n, std::int32_t d) {
  if constexpr (kMany) {
    x += blockIdx.z * n * stride;
    if (to.rows) to.rows += blockIdx.z * n * d;
    if (to.columns) to.columns += blockIdx.z * n * d;
    if (to.scale) to.scale += blockIdx.z;
  }
  __shared__ TurnedTile<kTileRows> tiles[kTiles];
  __shared__ std::uint32_t largest_of_warps[kMaxWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const auto [row, column] = TileThread();
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int32_t first_column = static_cast<std::int32_t>(blockIdx.x) * kTiles * kTileColumns;
  const float scale = to.scale ? to.scale->scale : 1.0f;
  const std::int64_t own_row = first_row + row;
  const std::int32_t own_column = first_column + column;
  const auto inside = [=](int r, int t) { return own_row + r < n && own_column + t * kTileColumns < d; };
  const auto place = [=](int r, int t) { return (own_row + r) * d + own_column + t * kTileColumns; };
  Eight<T> read[kTiles][4];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const T* const from = x + (own_row + r) * stride + own_column + t * kTileColumns;
      read[t][r] = Eight<T>::load(from, inside(r, t));
    }
  }
  LargestBits largest;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    uint2 bytes[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      bytes[r] = read[t][r].template cast<kE5m2>(scale, largest);
      if (to.rows && inside(r, t)) *reinterpret_cast<uint2*>(to.rows + place(r, t)) = bytes[r];
    }
    if (to.columns) tiles[t].put(row, column, bytes);
  }
  if (to.amax) largest.put(largest_of_warps, thread);
  __syncthreads();
  if (to.amax && thread == 0) LargestBits::record(largest_of_warps, kThreads / kWarp, to.amax);
  if (!to.columns) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    tiles[t].store(to, first_row, first_column + t * kTileColumns, n, d, d, thread, kThreads);
}

std::int64_t matrices_of(const Tensor& t) { return t.shape.rank() == 3 ? t.shape[0] : 1; }

// The rows of x are `stride` apart. Columns of several matrices are whole.
void launch_quantize(const Tensor& x, std::int64_t stride, CastTo to, cudaStream_t stream) {
  to.blocks = to.blocks && x.shape.rank() == 2;
  const std::int64_t matrices = matrices_of(x), n = x.rows() / matrices, d = x.columns();
  REDLINE_CHECK((n % 16 == 0 || !to.columns) && d % 16 == 0,
                "{} x {} are not multiples of 16: no product takes them in eight bits", n, d);
  const dim3 blocks(blocks_for(d, kTiles * kTileColumns), blocks_for(n, kTileRows), static_cast<unsigned>(matrices));
  REDLINE_CHECK(blocks.y < 65536 && blocks.z < 65536, "{} rows are too many, or {} matrices", n, matrices);
  const auto d32 = static_cast<std::int32_t>(d);
  const auto start = [&]<bool kMany>() {
    if (is_fp8(x.dtype)) {
      REDLINE_CHECK(!to.rows && to.columns, "what is in fp8 can only be turned over");
      quantize<std::uint8_t, false, kMany><<<blocks, kThreads, 0, stream>>>(x.as<std::uint8_t>(), stride, to, n, d32);
    } else {
      REDLINE_CHECK(x.dtype == DType::bf16, "{} is not cast to fp8", name_of(x.dtype));
      const auto kernel = to.e5m2 ? quantize<bf16, true, kMany> : quantize<bf16, false, kMany>;
      kernel<<<blocks, kThreads, 0, stream>>>(x.as<bf16>(), stride, to, n, d32);
    }
  };
  matrices > 1 ? start.template operator()<true>() : start.template operator()<false>();
  REDLINE_LAUNCHED();
}

__device__ Fp8Scale entry(float amax, float target) {
  Fp8Scale s{};
  s.amax = amax;
  s.scale = scale_for(amax, target);
  s.inverse = 1.0f / s.scale;
  return s;
}

// What a block of the grid has of it; its first thread records that in `amax`.
__device__ void record_largest(const bf16* x, std::int64_t vectors, float* amax) {
  __shared__ std::uint32_t largest_of_warps[kMaxWarps];
  LargestBits largest;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    largest.add(load<8>(x + 8 * i));
  largest.put(largest_of_warps, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) LargestBits::record(largest_of_warps, kThreads / kWarp, amax);
}

// While it runs, the entry's history holds the largest so far and how many blocks are done. Blocks in y have a matrix
// each.
template <bool kMany>
__global__ void __launch_bounds__(kThreads)
    scale_of(const bf16* x, std::int64_t vectors, Fp8Scale* scale, float target) {
  if constexpr (kMany) x += blockIdx.y * vectors * 8, scale += blockIdx.y;
  float* const so_far = scale->history;
  record_largest(x, vectors, so_far);
  if (threadIdx.x != 0) return;
  __threadfence();
  unsigned* const done = reinterpret_cast<unsigned*>(scale->history + 1);
  if (atomicAdd(done, 1u) + 1 < gridDim.x) return;
  __threadfence();
  *scale = entry(__int_as_float(atomicMax(reinterpret_cast<int*>(so_far), 0)), target);
}

// The largest of a norm's weights, in one block: they are a few thousand. |w + 1| is no number of bf16.
__device__ float largest_plus(const bf16* weight, float plus, std::int32_t n) {
  __shared__ float parts[kMaxWarps];
  float most = 0;
  for (std::int32_t i = threadIdx.x; i < n; i += blockDim.x)
    most = fmaxf(most, fabsf(__bfloat162float(weight[i]) + plus));
  return row_max(most, parts);
}

__global__ void __launch_bounds__(1024) bound_scale(const bf16* weight, float plus, std::int32_t d, Fp8Scale* scale) {
  const float most = largest_plus(weight, plus, d);
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

// A part of weights, and of a norm's.
__global__ void __launch_bounds__(kThreads) largest_of(const bf16* x, std::int64_t vectors, float* amax) {
  record_largest(x, vectors, amax);
}

__global__ void __launch_bounds__(1024) largest_plus_one(const bf16* weight, std::int32_t n, float* amax) {
  const float most = largest_plus(weight, 1.0f, n);
  if (threadIdx.x == 0) *amax = fmaxf(*amax, most);
}

__global__ void __launch_bounds__(256)
    set_scales(Fp8Scale* scales, float* amax, std::int32_t entries, float target, float factor) {
  const std::int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  scales[i] = entry(factor * amax[i], target);
  amax[i] = 0;
}

// How many bytes of a comparison's result, 0 or 0xFF each, are set.
__device__ unsigned bytes_set(unsigned word) { return static_cast<unsigned>(__popc(word)) / 8; }

__device__ void add_up(unsigned mine, std::uint64_t* to) {
  const unsigned sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum > 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), sum);
}

// A warp's counts fit into 32 bits: it has a small part of what is on a card.
__global__ void __launch_bounds__(kThreads)
    count_fp8(const uint4* codes, std::int64_t vectors, unsigned largest, Fp8Count* count) {
  const unsigned most = largest * 0x01010101u;
  unsigned saturated = 0, zeros = 0, not_finite = 0, seen = 0;
#pragma unroll 4
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const uint4 v = __ldg(codes + i);
    const unsigned words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const unsigned magnitudes = words[w] & 0x7F7F7F7Fu;
      saturated += bytes_set(__vcmpeq4(magnitudes, most));
      zeros += bytes_set(__vcmpeq4(magnitudes, 0));
      not_finite += bytes_set(__vcmpgtu4(magnitudes, most));
      seen = __vmaxu4(seen, magnitudes);
    }
  }
  add_up(saturated, &count->saturated);
  add_up(zeros, &count->zeros);
  add_up(not_finite, &count->not_finite);
  const unsigned mine = max(max(seen & 0xFFu, seen >> 8 & 0xFFu), max(seen >> 16 & 0xFFu, seen >> 24));
  const unsigned of_warp = __reduce_max_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0) atomicMax(reinterpret_cast<unsigned long long*>(&count->largest), of_warp);
}

}  // namespace

void run(const Quantize<Tensor>& op, const Launch& launch) {
  launch_quantize(op.x, op.x.columns(), cast_to(op.to, Columns::any), launch.stream);
}

void turn_over(const Tensor& rows, std::int64_t stride, const Tensor& columns, cudaStream_t stream) {
  launch_quantize(rows, stride, cast_to({.columns = columns}, Columns::any), stream);
}

void run(const QuantizeWeight<Tensor>& op, const Launch& launch) {
  const std::int64_t matrices = matrices_of(op.weight), vectors = op.weight.elements() / matrices / 8;
  REDLINE_CHECK(op.weight.dtype == DType::bf16 && op.weight.elements() / matrices % 8 == 0, "no cast of {} {}",
                name_of(op.weight.dtype), op.weight.shape.str());
  const dim3 blocks(
      static_cast<unsigned>(std::min<std::int64_t>(ceil_div<std::int64_t>(4 * launch.multiprocessors, matrices),
                                                   ceil_div<std::int64_t>(vectors, 4 * kThreads))),
      static_cast<unsigned>(matrices));
  const Fp8Copies<Tensor> to{op.rows, op.columns, op.scale, {}};
  const auto kernel = matrices > 1 ? scale_of<true> : scale_of<false>;
  kernel<<<blocks, kThreads, 0, launch.stream>>>(
      op.weight.as<bf16>(), vectors, op.scale.as<Fp8Scale>(),
      fp8_format(op.rows.present() ? op.rows.dtype : op.columns.dtype).largest);
  REDLINE_LAUNCHED();
  launch_quantize(op.weight, op.weight.columns(), cast_to(to, Columns::any), launch.stream);
}

void run(const BoundScale<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.weight.dtype == DType::bf16, "weights of a norm in {}", name_of(op.weight.dtype));
  bound_scale<<<1, 1024, 0, launch.stream>>>(op.weight.as<bf16>(), op.one_plus ? 1.0f : 0.0f,
                                             static_cast<std::int32_t>(op.weight.elements()), op.scale.as<Fp8Scale>());
  REDLINE_LAUNCHED();
}

void run(const MoveScales<Tensor>& op, const Launch& launch) {
  const std::int64_t entries = op.amax.elements();
  move_scales<<<blocks_for(entries, 256), 256, 0, launch.stream>>>(op.scales.as<Fp8Scale>(), op.amax.f32(),
                                                                   static_cast<std::int32_t>(entries),
                                                                   op.result.as<UpdateResult>(), op.target);
  REDLINE_LAUNCHED();
}

void run(const Largest<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(op.weight.dtype == DType::bf16 && op.weight.elements() % 8 == 0, "no largest of {} {}",
                name_of(op.weight.dtype), op.weight.shape.str());
  const std::int64_t n = op.weight.elements(), vectors = n / 8;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(4 * launch.multiprocessors, ceil_div<std::int64_t>(vectors, 4 * kThreads)));
  if (op.one_plus)
    largest_plus_one<<<1, 1024, 0, launch.stream>>>(op.weight.as<bf16>(), static_cast<std::int32_t>(n), op.amax.f32());
  else
    largest_of<<<blocks, kThreads, 0, launch.stream>>>(op.weight.as<bf16>(), vectors, op.amax.f32());
  REDLINE_LAUNCHED();
}

void run(const SetScales<Tensor>& op, const Launch& launch) {
  const std::int64_t entries = op.amax.elements();
  set_scales<<<blocks_for(entries, 256), 256, 0, launch.stream>>>(
      op.scales.as<Fp8Scale>(), op.amax.f32(), static_cast<std::int32_t>(entries), op.target, op.factor);
  REDLINE_LAUNCHED();
}

void run(const CountFp8<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(is_fp8(op.copy.dtype) && op.copy.elements() % 16 == 0, "no counts of {} {}", name_of(op.copy.dtype),
                op.copy.shape.str());
  const std::int64_t vectors = op.copy.elements() / 16;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(8 * launch.multiprocessors, ceil_div<std::int64_t>(vectors, kThreads)));
  count_fp8<<<blocks, kThreads, 0, launch.stream>>>(op.copy.as<uint4>(), vectors,
                                                    fp8_format(op.copy.dtype).largest_bits, op.count.as<Fp8Count>());
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
