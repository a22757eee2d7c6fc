// Causal attention within packed documents with Hopper's products; the sums are those of attention_flash.cu. Forward, a
// block is one warp group and takes 64 queries of a document and a head, over tiles of 64 keys copied one ahead. It
// waits for each of its products; the other blocks of the multiprocessor fill the tensor cores meanwhile, for a block
// is small. This suits short documents, where a piece of work is over after a few tiles. Blocks of several groups that
// share the keys were slower: they wait for each other. Backward, the two kernels are flash's as well, each the only
// writer of its rows: no atomics, one order. A block is one warp group.
//   query_kernel: 64 queries of a head over tiles of 64 keys; writes delta and dq.
//   key_kernel: 64 keys of a key/value head over the 64-query tiles of all heads of the group; keys are rows, so
//   p^T and ds^T come out as the left operands that dv and dk want. A query's lse and delta are a column's there:
//   products are added to them, which takes them before the wait for the products instead of after it.
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_pass.cuh"
#include "ops/cuda/warp_group_products.cuh"

namespace redline::ops::cuda {
namespace {

constexpr int kTile = 64, kWarpRows = 16;  // rows of a product, and those of them that one warp has

// After this call all copies into shared memory are visible to the warps and to their products, and tiles that earlier
// products have read may be overwritten.
__device__ void exchange_tiles() {
  await_copies();
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
}

// A tile as products see it: swizzle of 128 bytes, squares one after the other, 8 rows to the next. It serves both ways
// of reading: columns summed over (the squares' stride is not looked at then) and rows summed over. `bytes` into the
// tile.
template <int kHeadDim>
class TileView {
 public:
  __device__ explicit TileView(std::uint32_t tile)
      : low_((tile & 0x3ffff) >> 4 | static_cast<std::uint32_t>(TileRows<kHeadDim>::kSquareBytes / 16) << 16) {}
  __device__ std::uint64_t at(std::uint32_t bytes) const {
    constexpr std::uint64_t kSwizzle = std::uint64_t{1} << 62, kRows = 8 * TileRows<kHeadDim>::kRowBytes / 16;
    return kSwizzle | kRows << 32 | (low_ + bytes / 16);
  }

 private:
  std::uint32_t low_;
};

// One step of 16 of the summed dimension. Of tiles whose columns are summed over: c = a b^T, or c += a b^T where `add`
// is not 0. Of a left operand in registers and a tile whose rows are summed over: c = a b, or c += a b.
__device__ void multiply_step(float (&c)[8][4], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" REDLINE_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : REDLINE_SUMS_32(c, 0)
      : "l"(a), "l"(b), "r"(add));
}
__device__ void multiply_step(float (&c)[8][4], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" REDLINE_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : REDLINE_SUMS_32(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ void multiply_step(float (&c)[16][4], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" REDLINE_NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : REDLINE_SUMS_64(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// c = left right^T, or c += left right^T: 64 rows of one tile and 64 of another, summed over head_dim.
template <int kHeadDim>
__device__ void multiply_tiles(float (&c)[8][4], std::uint32_t left, std::uint32_t right, bool add = false) {
  const TileView<kHeadDim> a(left), b(right);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    const std::uint32_t columns = TileRows<kHeadDim>::offset(0, 2 * k);
    multiply_step(c, a.at(columns), b.at(columns), k > 0 || add);
  }
}

// c = weights right, or c += weights right: 64 x 64 weights in registers, 64 rows of a tile.
template <int kHeadDim>
__device__ void weigh_rows(float (&c)[kHeadDim / 8][4], const std::uint32_t (&weights)[4][4], std::uint32_t right,
                           bool add) {
  const TileView<kHeadDim> b(right);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_step(c, weights[k], b.at(k * 16 * TileRows<kHeadDim>::kRowBytes), k > 0 || add);
  }
}

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
    const int first_query = work.query_tile() * kTile, first_row = first_query + own;
    const int skipped = first_key_tile<kTile>(first_query, a.window), key_tiles = work.query_tile() + 1 - skipped;
    const __nv_bfloat16* document = a.qkv + static_cast<std::int64_t>(work.document.begin) * width;
    const int kv_head = static_cast<int>(static_cast<unsigned>(work.head) / group);
    const int first_key = skipped * kTile;
    TileReader<kHeadDim> keys(document + static_cast<std::int64_t>(first_key) * width + (a.heads + kv_head) * kHeadDim,
                              width, length - first_key);
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
      if (t + 1 == key_tiles) hide_later_keys<false>(s, first_row, first_key + t * kTile);
      if (first_query + kTile - 1 - first_key - t * kTile >= a.window)
        hide_far_keys<false>(s, first_row, first_key + t * kTile, a.window);
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

template <int kHeadDim>
struct Query {
  static constexpr int kBlocks = kHeadDim == 64 ? 4 : 2;  // of a multiprocessor
  static constexpr int kTileBytes = kTile * kHeadDim * 2;
  static constexpr int kBytes = 6 * kTileBytes;  // Q dout | K V | K V
};
template <int kHeadDim>
struct Key {
  static constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;
  static constexpr int kTileBytes = kTile * kHeadDim * 2, kRowBytes = kTile * 4;
  static constexpr int kStatistics = 6 * kTileBytes;          // K V | Q dout | Q dout
  static constexpr int kBytes = kStatistics + 4 * kRowBytes;  // lse delta | lse delta
};

// delta = rowsum(dout * out) of this lane's two of a warp's 16 queries: the diagonal of their product.
template <int kHeadDim>
__device__ void find_delta(float (&delta)[2], std::uint32_t dout_rows, std::uint32_t out_rows) {
  float c[1][2][4];
  multiply_rows<Bf16, kHeadDim>(c, dout_rows, out_rows);
  const int row = lane_index() / 4, holder = row * 4 + row / 2;  // of the four lanes of the row
#pragma unroll
  for (int half = 0; half < 2; ++half)
    delta[half] = __shfl_sync(~0u, row % 2 ? c[0][half][2 * half + 1] : c[0][half][2 * half], holder);
}

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, Query<kHeadDim>::kBlocks) void query_kernel(const GradArguments<> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Q = Query<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t q_tile = shared_address(memory), dout_tile = q_tile + Q::kTileBytes;
  const std::uint32_t kv_tiles = dout_tile + Q::kTileBytes;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim, out_width = a.heads * kHeadDim;
  const int own = warp_index() * kWarpRows, own_bytes = own * kHeadDim * 2, lane = lane_index();
  const auto group = static_cast<unsigned>(a.heads / a.kv_heads);
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.queries, a.heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin;
    const int first_query = work.query_tile() * kTile, skipped = first_key_tile<kTile>(first_query, a.window);
    const int key_tiles = work.query_tile() + 1 - skipped, first_key = skipped * kTile;
    const int first_row = first_query + own, present = length - first_row;
    const std::int64_t token = work.document.begin + first_query, own_token = token + own;
    const int kv_head = static_cast<int>(static_cast<unsigned>(work.head) / group);
    TileReader<kHeadDim> keys(
        a.qkv + static_cast<std::int64_t>(work.document.begin + first_key) * width + (a.heads + kv_head) * kHeadDim,
        width, length - first_key);
    const auto load_keys = [&](int t) {
      const std::uint32_t tile = kv_tiles + t % 2 * 2 * Q::kTileBytes;
      keys.template load_both<kTile>(tile, tile + Q::kTileBytes, a.kv_heads * kHeadDim);
    };
    TileReader<kHeadDim>(a.qkv + token * width + work.head * kHeadDim, width, length - first_query)
        .template load<kTile>(q_tile);
    TileReader<kHeadDim>(a.dout + token * out_width + work.head * kHeadDim, out_width, length - first_query)
        .template load<kTile>(dout_tile);
    const std::uint32_t out_tile = kv_tiles + 2 * Q::kTileBytes;  // where keys come once delta is there
    TileReader<kHeadDim>(a.out + token * out_width + work.head * kHeadDim, out_width, length - first_query)
        .template load<kTile>(out_tile);
    load_keys(0);

    float lse_log2[2], delta[2];
    const std::int64_t at = work.head * static_cast<std::int64_t>(a.n) + own_token;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      lse_log2[half] = row < present ? a.lse[at + row] * kLog2E : 0;
    }
    exchange_tiles();
    find_delta<kHeadDim>(delta, dout_tile + own_bytes, out_tile + own_bytes);
    if (lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (half * 8 + lane / 4 < present) a.delta[at + half * 8 + lane / 4] = delta[half];
    }
    if (key_tiles > 1) __syncthreads();  // everybody has read out

    float dq[1][kHeadDim / 8][4];
    for (int t = 0; t < key_tiles; ++t) {
      if (t + 1 < key_tiles) load_keys(t + 1);
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * Q::kTileBytes;
      float s[1][kTile / 8][4], dp[1][kTile / 8][4];
      begin_products();
      multiply_tiles<kHeadDim>(s[0], q_tile, k_tile);
      end_products();
      multiply_tiles<kHeadDim>(dp[0], dout_tile, k_tile + Q::kTileBytes);
      end_products();
      await_products<1>(s[0]);
      if (t + 1 == key_tiles) hide_later_keys<false>(s, first_row, first_key + t * kTile);
      if (first_query + kTile - 1 - first_key - t * kTile >= a.window)
        hide_far_keys<false>(s, first_row, first_key + t * kTile, a.window);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[0][n][i] = exp2_approx(s[0][n][i] * scale_log2 - lse_log2[i / 2]);
      }
      await_products<0>(dp[0]);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[0][n][i] *= dp[0][n][i] - delta[i / 2];
      }
      std::uint32_t ds[1][kTile / 16][4];
      round_to_weights(ds, s);
      begin_products();
      weigh_rows<kHeadDim>(dq[0], ds[0], k_tile, t > 0);
      end_products();
      await_products<0>(dq[0]);
      t + 1 < key_tiles ? exchange_tiles() : __syncthreads();
    }

    const float factor[1][2] = {{a.scale, a.scale}};
    store_rows<kHeadDim>(dq, factor, q_tile + own_bytes, a.dqkv + own_token * width + work.head * kHeadDim, width,
                         present);
  }
  clear_rows(a.dqkv, static_cast<std::int64_t>(width) * 2, *a.documents_end, a.n);
#else
  __trap();  // hopper_why_not keeps other cards away
#endif
}

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, Key<kHeadDim>::kBlocks) void key_kernel(const GradArguments<> a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using K = Key<kHeadDim>;
  using Reader = TileReader<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t k_tile = shared_address(memory), v_tile = k_tile + K::kTileBytes;
  const std::uint32_t q_tiles = v_tile + K::kTileBytes, statistics = k_tile + K::kStatistics;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim;
  const int group = a.heads / a.kv_heads, lane = lane_index();
  const float scale_log2 = a.scale * kLog2E, inverse_scale = 1 / a.scale;
  const int own = warp_index() * kWarpRows;

  for (WorkQueue queue(a.keys, a.kv_heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin, first_key = work.position * kTile;
    const std::int64_t token = work.document.begin + first_key;
    TileReader<kHeadDim>(a.qkv + token * width + (a.heads + work.head) * kHeadDim, width, length - first_key)
        .template load_both<kTile>(k_tile, v_tile, a.kv_heads * kHeadDim);

    SeeingQueries<kHeadDim, kTile> queries(a, work);
    const int query_tiles = queries.tiles(), steps = query_tiles * group;
    const auto load_queries = [&](int stage) {
      queries.load(q_tiles + stage * 2 * K::kTileBytes, statistics + stage * 2 * K::kRowBytes);
    };
    load_queries(0);

    float dk[1][kHeadDim / 8][4], dv[1][kHeadDim / 8][4];
    int t = 0;  // of query_tiles; tile 0 holds the diagonal
    exchange_tiles();
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) load_queries((step + 1) % 2);
      const std::uint32_t q_tile = q_tiles + step % 2 * 2 * K::kTileBytes, dout_tile = q_tile + K::kTileBytes;
      const std::uint32_t lse_row = statistics + step % 2 * 2 * K::kRowBytes + lane % 4 * 8;

      float p[1][kTile / 8][4], dp[1][kTile / 8][4];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        const float2 lse = load_shared_pair(lse_row + n * 32);
        const float2 delta = load_shared_pair(lse_row + K::kRowBytes + n * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[0][n][i] = (i % 2 ? lse.y : lse.x) * -inverse_scale;
          dp[0][n][i] = -(i % 2 ? delta.y : delta.x);
        }
      }
      begin_products(p[0], dp[0]);
      multiply_tiles<kHeadDim>(p[0], k_tile, q_tile, true);
      multiply_tiles<kHeadDim>(dp[0], v_tile, dout_tile, true);
      end_products();
      await_products<0>(p[0], dp[0]);
      if (t == 0) hide_later_keys<true>(p, own, 0);
      if (t * kTile + kTile - 1 >= a.window) hide_far_keys<true>(p, own, t * kTile, a.window);
      if (++t == query_tiles) t = 0;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[0][n][i] = exp2_approx(p[0][n][i] * scale_log2);
          dp[0][n][i] *= p[0][n][i];
        }
      }
      std::uint32_t weights[1][kTile / 16][4], ds[1][kTile / 16][4];
      round_to_weights(weights, p);
      round_to_weights(ds, dp);
      begin_products();
      weigh_rows<kHeadDim>(dv[0], weights[0], dout_tile, step > 0);
      weigh_rows<kHeadDim>(dk[0], ds[0], q_tile, step > 0);
      end_products();
      await_products<0>(dv[0], dk[0]);
      step + 1 < steps ? exchange_tiles() : __syncthreads();
    }

    const int first_row = first_key + own, present = length - first_row;
    const float one[1][2] = {{1, 1}}, factor[1][2] = {{a.scale, a.scale}};
    __nv_bfloat16* to = a.dqkv + (work.document.begin + first_row) * static_cast<std::int64_t>(width) +
                        (a.heads + work.head) * kHeadDim;
    store_rows<kHeadDim>(dk, factor, k_tile + own * kHeadDim * 2, to, width, present);
    store_rows<kHeadDim>(dv, one, v_tile + own * kHeadDim * 2, to + a.kv_heads * kHeadDim, width, present);
  }
#else
  __trap();  // hopper_why_not keeps other cards away
#endif
}

template <int kHeadDim>
void launch_backward(GradArguments<> a, const AttentionGrad<Tensor>& op, const Launch& launch) {
  using Q = Query<kHeadDim>;
  using K = Key<kHeadDim>;
  a.queries = a.keys = tile_list(op, kTile);
  const auto start = [&](auto* kernel, int blocks, std::size_t bytes) {
    device::cuda::allow_shared(kernel, bytes);
    kernel<<<static_cast<unsigned>(launch.multiprocessors * blocks), kThreads, bytes, launch.stream>>>(a);
    REDLINE_LAUNCHED();
  };
  start(query_kernel<kHeadDim>, Q::kBlocks, Q::kBytes);
  start(key_kernel<kHeadDim>, K::kBlocks, K::kBytes);
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

void hopper_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  const GradArguments<> a = arguments_of(op);
  op.layout.head_dim == 64 ? launch_backward<64>(a, op, launch) : launch_backward<128>(a, op, launch);
}

}  // namespace redline::ops::cuda
