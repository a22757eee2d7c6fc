// Embedding: y[i] = scale * weight[tokens[i]]. Gradient: dweight[t] (+)= scale * the sum of dy[i] over tokens[i] == t,
// in the order of i.
// Forward, one thread copies kVectors vectors. Backward, a stable radix sort of the tokens has made every row of the
// table one run of the sorted order. A block adds up one chunk of that order over its threads' columns; a run inside a
// chunk goes to its row at once, the pieces of a run that crosses chunks go to scratch and are added in order by a
// second kernel. So no two threads write one element, there are no atomics, and a token that every second position
// holds is shared.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kVectors = 4;  // of a thread: independent rows of the table on their way at once

template <class T, int kWidth>
__device__ Vector<T, kWidth> scaled(const Vector<T, kWidth>& x, float scale) {
  float out[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out[e] = x[e] * scale;
  return Vector<T, kWidth>::from(out);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads)
    embed(const std::int32_t* tokens, const T* weight, T* y, std::int64_t n, std::int32_t d, float scale) {
  Place at[kVectors];
  Vector<T, kWidth> row[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    at[v] = place_of_thread<kWidth>(n, d, kVectors, v);
    if (at[v].inside) row[v] = load<kWidth>(weight + std::int64_t{tokens[at[v].row]} * d + at[v].column);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (at[v].inside) store(y + at[v].row * d + at[v].column, scaled(row[v], scale));
}

__global__ void __launch_bounds__(kPlaceThreads) count_up(std::int32_t* index, std::int32_t n) {
  const auto i = static_cast<std::int32_t>(blockIdx.x * kPlaceThreads + threadIdx.x);
  if (i < n) index[i] = i;
}

constexpr int kColumnThreads = 128;

struct GradArguments {
  const std::int32_t* tokens;  // [n] sorted
  const std::int32_t* rows;    // [n] where each stood before
  float* dweight;              // [V, d]
  float* pieces;               // [chunks, 2, d]: of a run from the chunk before, of one that goes on into the next
  std::int32_t n, d, chunk;
  bool accumulate;
  std::int32_t padding;
  float scale;

  __device__ float* piece(std::int32_t of_chunk, int which) const {
    return pieces + (std::int64_t{of_chunk} * 2 + which) * d;
  }
};

template <int kWidth>
__device__ std::int32_t column_of_thread() {
  return static_cast<std::int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * kWidth;
}

template <int kWidth>
__device__ void put(float* to, float (&sum)[kWidth], float scale, bool accumulate) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum[e] *= scale;
  if (accumulate) {
    const auto before = load<kWidth>(to);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] += before[e];
  }
  store(to, sum);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kColumnThreads) sum_chunks(const GradArguments a, const T* dy) {
  constexpr int kBatch = 8;  // rows on their way at once
  const std::int32_t column = column_of_thread<kWidth>(), chunk = blockIdx.x;
  if (column >= a.d) return;
  const std::int32_t begin = chunk * a.chunk, end = min(a.n, begin + a.chunk);
  bool from_before = begin > 0 && a.tokens[begin - 1] == a.tokens[begin];
  float sum[kWidth] = {};
  for (std::int32_t first = begin; first < end; first += kBatch) {
    Vector<T, kWidth> row[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k < end) row[k] = load<kWidth>(dy + std::int64_t{a.rows[first + k]} * a.d + column);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const std::int32_t i = first + k;
      if (i >= end) break;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += row[k][e];
      const bool goes_on = i + 1 < a.n && a.tokens[i + 1] == a.tokens[i];
      if (goes_on && i + 1 < end) continue;
      if (from_before) {
        store(a.piece(chunk, 0) + column, sum);
      } else if (goes_on) {
        store(a.piece(chunk, 1) + column, sum);
      } else if (a.tokens[i] != a.padding) {
        put(a.dweight + std::int64_t{a.tokens[i]} * a.d + column, sum, a.scale, a.accumulate);
      }
      from_before = false;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] = 0;
    }
  }
}

// A block for each chunk but the last: where a run starts in it and goes on into the next, it adds up the run's pieces.
template <int kWidth>
__global__ void __launch_bounds__(kColumnThreads) join_chunks(const GradArguments a) {
  const std::int32_t column = column_of_thread<kWidth>(), chunk = blockIdx.x;
  const std::int32_t begin = chunk * a.chunk, end = begin + a.chunk, token = a.tokens[end - 1];
  const bool starts_here = begin == 0 || a.tokens[begin - 1] != token;
  if (column >= a.d || a.tokens[end] != token || !starts_here || token == a.padding) return;
  std::int32_t inside = end, outside = a.n;  // the last position of the run, by bisection
  while (outside - inside > 1) {
    const std::int32_t middle = inside + (outside - inside) / 2;
    (a.tokens[middle] == token ? inside : outside) = middle;
  }
  float sum[kWidth];
  const auto start = load<kWidth>(a.piece(chunk, 1) + column);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum[e] = start[e];
#pragma unroll 8
  for (std::int32_t next = chunk + 1; next <= inside / a.chunk; ++next) {
    const auto piece = load<kWidth>(a.piece(next, 0) + column);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] += piece[e];
  }
  put(a.dweight + std::int64_t{token} * a.d + column, sum, a.scale, a.accumulate);
}

}  // namespace

void run(const Embed<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.y.rows(), d = op.y.columns();
  for_type_and_width(op.y.dtype, in_vectors(d, {op.weight, op.y}), [&]<class T, int kWidth>() {
    embed<T, kWidth><<<place_blocks(n, d, kWidth, kVectors), kPlaceThreads, 0, launch.stream>>>(
        op.tokens.i32(), op.weight.as<T>(), op.y.as<T>(), n, static_cast<std::int32_t>(d), op.scale);
  });
  REDLINE_LAUNCHED();
}

void run(const SortTokens<Tensor>& op, const Launch& launch) {
  const auto n = static_cast<std::int32_t>(op.tokens.elements());
  std::int32_t *sorted = op.order.i32(), *rows = sorted + n, *index = op.temporary.as<std::int32_t>();
  count_up<<<blocks_for(n, kPlaceThreads), kPlaceThreads, 0, launch.stream>>>(index, n);
  REDLINE_LAUNCHED();
  const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(op.vocab - 1))));
  const auto sort = [&](void* temporary, std::size_t& bytes) {
    REDLINE_CUDA(cub::DeviceRadixSort::SortPairs(temporary, bytes, op.tokens.i32(), sorted, index, rows, n, 0, bits,
                                                 launch.stream));
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  const std::int64_t own = ceil_div<std::int64_t>(4 * std::int64_t{n}, 256) * 256;
  REDLINE_CHECK(own + static_cast<std::int64_t>(bytes) <= op.temporary.bytes(),
                "to sort {} tokens takes {} bytes, not {}", n, own + static_cast<std::int64_t>(bytes),
                op.temporary.bytes());
  sort(op.temporary.as<std::byte>() + own, bytes);
}

void run(const EmbedGrad<Tensor>& op, const Launch& launch) {
  const auto n = static_cast<std::int32_t>(op.dy.rows()), d = static_cast<std::int32_t>(op.dy.columns());
  if (!op.accumulate) {
    REDLINE_CUDA(cudaMemsetAsync(op.dweight.data, 0, static_cast<std::size_t>(op.dweight.bytes()), launch.stream));
  }
  std::int64_t chunk = kEmbedChunk;
  while (piece_rows(n, chunk) > op.pieces.rows() && chunk < n) chunk *= 2;
  REDLINE_CHECK(piece_rows(n, chunk) <= op.pieces.rows(), "embed_grad has {} rows for pieces", op.pieces.rows());
  const auto chunks = static_cast<std::int32_t>(ceil_div<std::int64_t>(n, chunk));
  const GradArguments arguments{
      op.order.i32(), op.order.i32() + n, op.dweight.f32(), op.pieces.f32(), n, d, static_cast<std::int32_t>(chunk),
      op.accumulate,  op.padding,         op.scale};
  for_type_and_width(op.dy.dtype, in_vectors(d, {op.dy, op.dweight, op.pieces}), [&]<class T, int kWidth>() {
    const std::int64_t threads = std::min<std::int64_t>(kColumnThreads, whole_warps(d / kWidth));
    const dim3 tiles(static_cast<unsigned>(chunks), blocks_for(d / kWidth, threads));
    sum_chunks<T, kWidth><<<tiles, static_cast<unsigned>(threads), 0, launch.stream>>>(arguments, op.dy.as<T>());
    REDLINE_LAUNCHED();
    if (chunks == 1) return;
    const dim3 joints(tiles.x - 1, tiles.y);
    join_chunks<kWidth><<<joints, static_cast<unsigned>(threads), 0, launch.stream>>>(arguments);
    REDLINE_LAUNCHED();
  });
}

}  // namespace redline::ops::cuda
