// Causal attention within packed documents, forward, with Hopper's products; the sums are those of attention_flash.cu.
// A block is one warp group and takes 64 queries of a document and a head, over tiles of 64 keys copied one ahead. It
// waits for each of its products; the other blocks of the multiprocessor fill the tensor cores meanwhile, for a block
// is small. This suits short documents, where a piece of work is over after a few tiles. Blocks of several groups that
// share the keys were slower: they wait for each other.
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_pass.cuh"
#include "ops/cuda/attention_softmax.cuh"
#include "ops/cuda/attention_wgmma.cuh"

namespace redline::ops::cuda {
namespace {

template <int kHeadDim>
struct Forward {
  static constexpr int kBlocks = kHeadDim == 64 ? 5 : 2;                            // of a multiprocessor
  static constexpr int kTileBytes = kTile * kHeadDim * 2, kBytes = 5 * kTileBytes;  // Q | K V | K V
};

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, Forward<kHeadDim>::kBlocks) void forward_kernel(const ForwardArguments<> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kTileBytes = Forward<kHeadDim>::kTileBytes;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t q_tile = shared_address(memory), kv_tiles = q_tile + kTileBytes;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim, own = warp_index() * kWarpRows;
  const auto group = static_cast<unsigned>(a.heads / a.kv_heads);
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.tiles, a.heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin;
    const int key_tiles = work.query_tile() + 1, first_query = work.query_tile() * kTile, first_row = first_query + own;
    const __nv_bfloat16* document = a.qkv + static_cast<std::int64_t>(work.document.begin) * width;
    const int kv_head = static_cast<int>(static_cast<unsigned>(work.head) / group);
    TileReader<kHeadDim> keys(document + (a.heads + kv_head) * kHeadDim, width, length);
    const auto load_keys = [&](int t) {
      const std::uint32_t tile = kv_tiles + t % 2 * 2 * kTileBytes;
      keys.template load_both<kTile>(tile, tile + kTileBytes, a.kv_heads * kHeadDim);
    };
    TileReader<kHeadDim>(document + static_cast<std::int64_t>(first_query) * width + work.head * kHeadDim, width,
                         length - first_query)
        .template load<kTile>(q_tile);
    load_keys(0);

    float out[1][kHeadDim / 8][4];
    SoftmaxRows<1> rows;
    exchange_tiles();
    for (int t = 0; t < key_tiles; ++t) {
      if (t + 1 < key_tiles) load_keys(t + 1);
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * kTileBytes;
      float s[1][kTile / 8][4];
      begin_products();
      multiply_tiles<kHeadDim>(s[0], q_tile, k_tile);
      end_products();
      await_products<0>(s[0]);
      if (t + 1 == key_tiles) hide_later_keys<false>(s, first_row, t * kTile);
      softmax_step(s, out, rows, scale_log2, t > 0);
      std::uint32_t p[1][kTile / 16][4];
      round_to_weights(p, s);
      begin_products();
      weigh_rows<kHeadDim>(out[0], p[0], k_tile + kTileBytes, t > 0);
      end_products();
      await_products<0>(out[0]);
      t + 1 < key_tiles ? exchange_tiles() : __syncthreads();
    }

    const std::int64_t token = work.document.begin + first_row;
    float factor[1][2];
    finish_softmax(rows, a.scale, a.lse + static_cast<std::int64_t>(work.head) * a.n + token, length - first_row,
                   factor);
    store_rows<kHeadDim>(out, factor, q_tile + own * kHeadDim * 2, a.out + (token * a.heads + work.head) * kHeadDim,
                         a.heads * kHeadDim, length - first_row);
  }

  clear_tail<kHeadDim>(a);
#else
  __trap();  // hopper_why_not keeps other cards away
#endif
}

template <int kHeadDim>
void launch_forward(ForwardArguments<> a, const Attention<Tensor>& op, const Launch& launch) {
  using F = Forward<kHeadDim>;
  a.tiles = tile_list(op, kTile);
  device::cuda::allow_shared(forward_kernel<kHeadDim>, F::kBytes);
  forward_kernel<kHeadDim>
      <<<static_cast<unsigned>(launch.multiprocessors * F::kBlocks), kThreads, F::kBytes, launch.stream>>>(a);
  REDLINE_LAUNCHED();
}

}  // namespace

std::string hopper_why_not(const AttentionCase& c) {
  if (c.dtype != DType::bf16) return "it computes in bf16";
  if (c.layout.head_dim != 64 && c.layout.head_dim != 128) return "it is built for head_dim 64 and 128";
  if (c.major != 9) return "it needs compute capability 9.0";
  return REDLINE_SM90A ? "" : "this program was not compiled for 90a";
}

void hopper_forward(const Attention<Tensor>& op, const Launch& launch) {
  const ForwardArguments<> a = arguments_of(op);
  op.layout.head_dim == 64 ? launch_forward<64>(a, op, launch) : launch_forward<128>(a, op, launch);
}

}  // namespace redline::ops::cuda
