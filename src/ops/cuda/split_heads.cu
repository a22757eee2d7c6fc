// Heads in parts and together again (ops/split_heads.h). One thread has one vector of the result: of a part's row where
// heads are split; where they are joined, of a whole row, for which it adds up the heads that stand in several parts,
// part after part.
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

// What a kernel knows of the layout, in 32 bits: its divisions are most of what it does.
struct Heads {
  std::int32_t dim, heads, kv_heads, part_heads, part_kv_heads, repeats;
  __device__ std::int32_t width() const { return (heads + 2 * kv_heads) * dim; }
  __device__ std::int32_t part_width() const { return (part_heads + 2 * part_kv_heads) * dim; }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads)
    split(const T* whole, T* parts, std::int32_t n, std::int32_t rows, const Heads h) {
  const Place at = place_of_thread<kWidth>(rows, h.part_width());
  if (!at.inside) return;
  const auto row = static_cast<std::int32_t>(at.row);
  const std::int32_t rank = row / n, token = row - rank * n;
  const std::int32_t head = at.column / h.dim, within = at.column - head * h.dim;
  std::int32_t from = rank * h.part_heads + head;
  if (head >= h.part_heads) {
    const std::int32_t key = head - h.part_heads, values = key / h.part_kv_heads;
    const std::int32_t unit = rank * h.part_kv_heads + key - values * h.part_kv_heads;
    from = h.heads + values * h.kv_heads + unit / h.repeats;
  }
  store<kWidth>(parts + at.row * h.part_width() + at.column,
                load<kWidth>(whole + std::int64_t{token} * h.width() + from * h.dim + within));
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) join(const T* parts, T* whole, std::int32_t n, const Heads h) {
  const Place at = place_of_thread<kWidth>(n, h.width());
  if (!at.inside) return;
  const std::int32_t head = at.column / h.dim, within = at.column - head * h.dim;
  const auto in_part = [&](std::int32_t rank, std::int32_t part_head) {
    return parts + (std::int64_t{rank} * n + at.row) * h.part_width() + part_head * h.dim + within;
  };
  T* const to = whole + at.row * h.width() + at.column;
  if (head < h.heads) {
    const std::int32_t rank = head / h.part_heads;
    return store<kWidth>(to, load<kWidth>(in_part(rank, head - rank * h.part_heads)));
  }
  const std::int32_t key = head - h.heads, values = key / h.kv_heads;
  const std::int32_t first = (key - values * h.kv_heads) * h.repeats;
  float sum[kWidth] = {};
  for (std::int32_t unit = first; unit < first + h.repeats; ++unit) {
    const std::int32_t rank = unit / h.part_kv_heads;
    const auto part =
        load<kWidth>(in_part(rank, h.part_heads + values * h.part_kv_heads + unit - rank * h.part_kv_heads));
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum[e] += part[e];
  }
  store<kWidth>(to, sum);
}

}  // namespace

void run(const SplitHeads<Tensor>& op, const Launch& launch) {
  const HeadLayout part = part_of(op.layout, op.ranks);
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const Heads h{narrow(op.layout.head_dim), narrow(op.layout.heads), narrow(op.layout.kv_heads),
                narrow(part.heads),         narrow(part.kv_heads),   narrow(op.repeats())};
  const std::int64_t n = op.whole.rows(), rows = op.ranks * n;
  for_type_and_width(op.whole.dtype, in_vectors(op.layout.head_dim, {op.whole, op.parts}), [&]<class T, int kWidth>() {
    if (op.join)
      join<T, kWidth><<<place_blocks(n, op.layout.qkv_width(), kWidth), kPlaceThreads, 0, launch.stream>>>(
          op.parts.as<T>(), op.whole.as<T>(), narrow(n), h);
    else
      split<T, kWidth><<<place_blocks(rows, part.qkv_width(), kWidth), kPlaceThreads, 0, launch.stream>>>(
          op.whole.as<T>(), op.parts.as<T>(), narrow(n), narrow(rows), h);
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
