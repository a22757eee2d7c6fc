// Causal attention within packed documents, forward, on tensor cores. Over key tiles in order, s = q k^T:
//   top' = max(top, s);  p = exp2((s - top') * scale * log2 e)
//   sum = sum * exp2((top - top') * scale * log2 e) + rowsum p;  out likewise + p v
//   at the end out /= sum and lse = top * scale + log sum
// A block takes 128 queries of a document and a head, a warp 32 of them with their scores and out in registers: each
// ldmatrix of keys or values feeds two mma's, as shared memory could not feed one each. K and V tiles of 64 keys are
// copied one ahead. Tiles of fp32 have half as many rows in as many bytes, and a warp 16 queries. The key of a
// document's first token is in the first tile and seen by all, so top is finite from then on.
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_pass.cuh"
#include "ops/cuda/attention_softmax.cuh"

namespace redline::ops::cuda {
namespace {

template <class Math, int kHeadDim>
struct Forward {
  static constexpr int kRowBytes = TileRows<kHeadDim, Element<Math>>::kRowBytes;
  static constexpr int kQueries = 256 / static_cast<int>(sizeof(Element<Math>)), kKeys = kQueries / 2;
  static constexpr int kQueryBytes = kQueries * kRowBytes, kKeyBytes = kKeys * kRowBytes;
  static constexpr int kBytes = kQueryBytes + 4 * kKeyBytes;  // Q | K V | K V
  static constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;      // a multiprocessor
};

template <class Math, int kHeadDim>
__global__ __launch_bounds__(kThreads, Forward<Math, kHeadDim>::kBlocks) void forward_kernel(
    const ForwardArguments<Element<Math>> a) {
  using T = Element<Math>;
  using F = Forward<Math, kHeadDim>;
  constexpr int kQueries = F::kQueries, kKeys = F::kKeys, kWarpQueries = kQueries / kWarps, kM = kWarpQueries / 16;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t q_tile = shared_address(memory), kv_tiles = q_tile + F::kQueryBytes;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim, group = a.heads / a.kv_heads;
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.tiles, a.heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin;
    const int first_query = (work.document.tiles - 1 - work.position) * kQueries;
    const int key_tiles = (min(length, first_query + kQueries) + kKeys - 1) / kKeys;
    const T* document = a.qkv + static_cast<std::int64_t>(work.document.begin) * width;
    const T* q = document + static_cast<std::int64_t>(first_query) * width + work.head * kHeadDim;
    const T* k = document + (a.heads + work.head / group) * kHeadDim;
    TileReader<kHeadDim, T> keys(k, width, length);
    const auto load_keys = [&](int t) {
      const std::uint32_t tile = kv_tiles + t % 2 * 2 * F::kKeyBytes;
      keys.template load_both<kKeys>(tile, tile + F::kKeyBytes, a.kv_heads * kHeadDim);
    };
    TileReader<kHeadDim, T>(q, width, length - first_query).template load<kQueries>(q_tile);
    load_keys(0);

    // The upper warps of a block have least to do in short documents; which scheduler gets them changes from piece to
    // piece.
    const int part = (warp_index() + queue.index()) % kWarps;
    const int first_row = first_query + part * kWarpQueries;
    const std::uint32_t own_rows = q_tile + part * kWarpQueries * F::kRowBytes;
    const int own_end = min(first_row + kWarpQueries, length);
    const int own_tiles = first_row < length ? (own_end + kKeys - 1) / kKeys : 0;
    float out[kM][kHeadDim / 8][4] = {};
    SoftmaxRows<kM> rows;

    for (int t = 0; t < key_tiles; ++t) {
      await_copies();
      __syncthreads();  // tile t is here, and nobody reads the other one any more
      if (t + 1 < key_tiles) load_keys(t + 1);
      if (t >= own_tiles) continue;
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * F::kKeyBytes;
      const auto take_keys = [&]<int kCount>() {
        float s[kM][kCount / 8][4];
        multiply_rows<Math, kHeadDim>(s, own_rows, k_tile);
        if (t * kKeys + kCount - 1 > first_row) hide_later_keys<false>(s, first_row, t * kKeys);
        softmax_step(s, out, rows, scale_log2, true);
        multiply_weights<Math, kHeadDim>(out, s, k_tile + F::kKeyBytes);
      };
      // Every second warp sees the first half of its last tile only.
      t* kKeys + kKeys / 2 < own_end ? take_keys.template operator()<kKeys>()
                                     : take_keys.template operator()<kKeys / 2>();
    }

    if (own_tiles == 0) continue;
    const std::int64_t token = work.document.begin + first_row;
    float factor[kM][2];
    finish_softmax(rows, a.scale, a.lse + static_cast<std::int64_t>(work.head) * a.n + token, length - first_row,
                   factor);
    store_rows<kHeadDim>(out, factor, own_rows, a.out + (token * a.heads + work.head) * kHeadDim, a.heads * kHeadDim,
                         length - first_row);
  }

  clear_tail<kHeadDim>(a);
}

template <class Math, int kHeadDim>
void launch_forward(const Attention<Tensor>& op, const Launch& launch) {
  using F = Forward<Math, kHeadDim>;
  const int blocks = launch.multiprocessors * F::kBlocks;
  auto a = arguments_of<Element<Math>>(op);
  a.tiles = tile_list(op, F::kQueries);
  const auto kernel = forward_kernel<Math, kHeadDim>;
  device::cuda::allow_shared(kernel, F::kBytes);
  kernel<<<static_cast<unsigned>(blocks), kThreads, F::kBytes, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

}  // namespace

std::string flash_why_not(const AttentionCase& c) {
  if (c.dtype != DType::bf16 && c.dtype != DType::f32) return "it computes in bf16 and fp32";
  if (c.layout.head_dim != 64 && c.layout.head_dim != 128) return "it is built for head_dim 64 and 128";
  return c.major >= 8 ? "" : "it needs compute capability 8.0";
}

void flash_forward(const Attention<Tensor>& op, const Launch& launch) {
  with_math(op, [&]<class Math, int kHeadDim>() { launch_forward<Math, kHeadDim>(op, launch); });
}

}  // namespace redline::ops::cuda
