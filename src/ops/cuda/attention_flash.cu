// Causal attention within packed documents, forward, on tensor cores. Over key tiles in order, s = q k^T:
//   top' = max(top, s);  p = exp2((s - top') * scale * log2 e)
//   sum = sum * exp2((top - top') * scale * log2 e) + rowsum p;  out likewise + p v
//   at the end out /= sum and lse = top * scale + log sum
// A block takes 128 queries of a document and a head, a warp 32 of them with their scores and out in registers: each
// ldmatrix of keys or values feeds two mma's, as shared memory could not feed one each. K and V tiles of 64 keys are
// copied one ahead. Tiles of fp32 have half as many rows in as many bytes, and a warp 16 queries. The key of a
// document's first token is in the first tile and seen by all, so top is finite from then on.
// Backward:
//   p = exp2((q k^T) * scale * log2 e - lse * log2 e);  delta = rowsum(dout * out);  ds = p * (dout v^T - delta)
//   dq = scale ds k;  dv = p^T dout;  dk = scale ds^T q
// Two kernels, each the only writer of its rows, so no atomics and one order; the price is that both compute q k^T and
// dout v^T, 7 products where 5 would do. All matrices between two products stay in registers.
//   query_kernel: a block takes 128 queries of a head, a warp 32 of them, over tiles of 32 keys; writes delta and dq.
//   key_kernel: a block takes 64 keys of a key/value head, a warp 16 of them, over the 64-query tiles of all heads of
//   the group; keys are rows, so p^T and ds^T come out as the left operands that dv and dk want.
// In fp32 tiles are smaller, as many bytes in all: 64 queries over 16 keys, 64 keys over 16 queries.
#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_pass.cuh"

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
    const int first_key = first_key_tile<kKeys>(first_query, a.window) * kKeys;
    const int key_tiles = (min(length, first_query + kQueries) - first_key + kKeys - 1) / kKeys;
    const T* document = a.qkv + static_cast<std::int64_t>(work.document.begin) * width;
    const T* q = document + static_cast<std::int64_t>(first_query) * width + work.head * kHeadDim;
    const T* k = document + static_cast<std::int64_t>(first_key) * width + (a.heads + work.head / group) * kHeadDim;
    TileReader<kHeadDim, T> keys(k, width, length - first_key);
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
    const int own_tiles = first_row < length ? (own_end - first_key + kKeys - 1) / kKeys : 0;
    float out[kM][kHeadDim / 8][4] = {};
    SoftmaxRows<kM> rows;

    for (int t = 0; t < key_tiles; ++t) {
      await_copies();
      __syncthreads();  // tile t is here, and no warp reads the other one any more
      if (t + 1 < key_tiles) load_keys(t + 1);
      if (t >= own_tiles) continue;
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * F::kKeyBytes;
      const auto take_keys = [&]<int kCount>() {
        float s[kM][kCount / 8][4];
        multiply_rows<Math, kHeadDim>(s, own_rows, k_tile);
        const int key = first_key + t * kKeys;
        if (key + kCount - 1 > first_row) hide_later_keys<false>(s, first_row, key);
        if (first_row + kWarpQueries - 1 - key >= a.window) hide_far_keys<false>(s, first_row, key, a.window);
        softmax_step(s, out, rows, scale_log2, true);
        multiply_weights<Math, kHeadDim>(out, s, k_tile + F::kKeyBytes);
      };
      // Every second warp sees the first half of its last tile only.
      first_key + t* kKeys + kKeys / 2 < own_end ? take_keys.template operator()<kKeys>()
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

// How many blocks a multiprocessor holds: of both kernels, by registers and on Hopper by shared memory too.
template <int kHeadDim>
constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;

namespace query {

template <class Math, int kHeadDim>
struct Tiles {
  static constexpr int kRowBytes = TileRows<kHeadDim, Element<Math>>::kRowBytes;
  static constexpr int kQueries = 256 / static_cast<int>(sizeof(Element<Math>)), kKeys = kQueries / 4;
  static constexpr int kWarpQueries = kQueries / kWarps;
  static constexpr int kQueryBytes = kQueries * kRowBytes, kKeyBytes = kKeys * kRowBytes;
  static constexpr int kDelta = 2 * kQueryBytes + 4 * kKeyBytes;  // Q dout | K V | K V
  static constexpr int kBytes = kDelta + kQueries * 4;
};

// One warp: delta of kRows queries, a lane a chunk of them, to global memory for key_kernel and to delta_shared for
// itself.
template <int kHeadDim, int kRows, class T>
__device__ inline void fill_delta(const T* out, const T* dout, int stride, int present, float* delta,
                                  float* delta_shared) {
  constexpr int kLanes = TileRows<kHeadDim, T>::kChunks;
  const int lane = lane_index(), column = lane % kLanes * static_cast<int>(16 / sizeof(T));
#pragma unroll 4
  for (int i = 0; i < kRows * kLanes / 32; ++i) {
    const int row = i * (32 / kLanes) + lane / kLanes;
    float sum = 0;
    if (row < present) {
      const std::int64_t at = static_cast<std::int64_t>(row) * stride + column;
      const uint4 o = *reinterpret_cast<const uint4*>(out + at), d = *reinterpret_cast<const uint4*>(dout + at);
      sum = dot_chunk<T>(o, d);
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane % kLanes == 0) {
      delta_shared[row] = sum;
      if (row < present) delta[row] = sum;
    }
  }
  __syncwarp();
}

template <class Math, int kHeadDim>
__global__ __launch_bounds__(kThreads, kBlocks<kHeadDim>) void query_kernel(const GradArguments<Element<Math>> a) {
  using T = Element<Math>;
  using Q = Tiles<Math, kHeadDim>;
  constexpr int kQueries = Q::kQueries, kKeys = Q::kKeys, kWarpQueries = Q::kWarpQueries, kM = kWarpQueries / 16;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t q_tile = shared_address(memory), kv_tiles = q_tile + 2 * Q::kQueryBytes;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim, out_width = a.heads * kHeadDim;
  const int group = a.heads / a.kv_heads, lane = lane_index();
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.queries, a.heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin;
    const int first_query = (work.document.tiles - 1 - work.position) * kQueries;
    const int first_key = first_key_tile<kKeys>(first_query, a.window) * kKeys;
    const int key_tiles = (min(length, first_query + kQueries) - first_key + kKeys - 1) / kKeys;
    const std::int64_t token = work.document.begin + first_query;
    const T* k = a.qkv + static_cast<std::int64_t>(work.document.begin + first_key) * width +
                 (a.heads + work.head / group) * kHeadDim;
    TileReader<kHeadDim, T> keys(k, width, length - first_key);
    const auto load_keys = [&](int t) {
      const std::uint32_t tile = kv_tiles + t % 2 * 2 * Q::kKeyBytes;
      keys.template load_both<kKeys>(tile, tile + Q::kKeyBytes, a.kv_heads * kHeadDim);
    };
    TileReader<kHeadDim, T>(a.qkv + token * width + work.head * kHeadDim, width, length - first_query)
        .template load<kQueries>(q_tile);
    TileReader<kHeadDim, T>(a.dout + token * out_width + work.head * kHeadDim, out_width, length - first_query)
        .template load<kQueries>(q_tile + Q::kQueryBytes);
    load_keys(0);

    // As in the forward kernel: the warps with least to do change from piece to piece.
    const int part = (warp_index() + queue.index()) % kWarps;
    const int first_row = first_query + part * kWarpQueries;
    const std::uint32_t own_rows = q_tile + part * kWarpQueries * Q::kRowBytes;
    const int own_tiles = first_row < length ? (first_row + kWarpQueries - first_key + kKeys - 1) / kKeys : 0;
    float dq[kM][kHeadDim / 8][4] = {};
    float lse_log2[kM][2], delta[kM][2];
    if (own_tiles > 0) {
      const std::int64_t own = work.document.begin + first_row, at = work.head * static_cast<std::int64_t>(a.n) + own;
      float* delta_shared = reinterpret_cast<float*>(memory + Q::kDelta) + part * kWarpQueries;
      const std::int64_t from = own * out_width + work.head * kHeadDim;
      fill_delta<kHeadDim, kWarpQueries>(a.out + from, a.dout + from, out_width, length - first_row, a.delta + at,
                                         delta_shared);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = m * 16 + half * 8 + lane / 4;
          delta[m][half] = delta_shared[row];
          lse_log2[m][half] = first_row + row < length ? a.lse[at + row] * kLog2E : 0;
        }
      }
    }

    for (int t = 0; t < key_tiles; ++t) {
      await_copies();
      __syncthreads();  // tile t is here, and no warp reads the other one any more
      if (t + 1 < key_tiles) load_keys(t + 1);
      if (t >= own_tiles) continue;
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * Q::kKeyBytes;
      float s[kM][kKeys / 8][4], dp[kM][kKeys / 8][4];
      multiply_rows<Math, kHeadDim>(s, own_rows, k_tile);
      const int key = first_key + t * kKeys;
      if (key + kKeys - 1 > first_row) hide_later_keys<false>(s, first_row, key);
      if (first_row + kWarpQueries - 1 - key >= a.window) hide_far_keys<false>(s, first_row, key, a.window);
      multiply_rows<Math, kHeadDim>(dp, own_rows + Q::kQueryBytes, k_tile + Q::kKeyBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float p = exp2_approx(s[m][n][i] * scale_log2 - lse_log2[m][i / 2]);
            s[m][n][i] = p * (dp[m][n][i] - delta[m][i / 2]);
          }
        }
      }
      multiply_weights<Math, kHeadDim>(dq, s, k_tile);
    }

    if (own_tiles == 0) continue;
    float factor[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) factor[m][0] = factor[m][1] = a.scale;
    T* to = a.dqkv + (work.document.begin + first_row) * static_cast<std::int64_t>(width);
    store_rows<kHeadDim>(dq, factor, own_rows, to + work.head * kHeadDim, width, length - first_row);
  }
  clear_rows(a.dqkv, width * static_cast<std::int64_t>(sizeof(T)), *a.documents_end, a.n);
}

}  // namespace query

namespace key {

template <class Math, int kHeadDim>
struct Tiles {
  using T = Element<Math>;
  static constexpr int kKeys = 64, kQueries = sizeof(T) == 2 ? 64 : 16;
  using Queries = SeeingQueries<kHeadDim, kKeys, kQueries, T>;
  static constexpr int kRowBytes = TileRows<kHeadDim, T>::kRowBytes, kKeyBytes = kKeys * kRowBytes;
  static constexpr int kStatistics = 2 * kKeyBytes + 4 * Queries::kTileBytes;  // K V | Q dout | Q dout
  static constexpr int kBytes = kStatistics + 4 * Queries::kRowBytes;          // lse delta | lse delta
};

template <class Math, int kHeadDim>
__global__ __launch_bounds__(kThreads, kBlocks<kHeadDim>) void key_kernel(const GradArguments<Element<Math>> a) {
  using T = Element<Math>;
  using K = Tiles<Math, kHeadDim>;
  using Queries = typename K::Queries;
  constexpr int kKeys = K::kKeys, kQueries = K::kQueries, kWarpKeys = kKeys / kWarps, kM = kWarpKeys / 16;
  constexpr int kN = kQueries / 8;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t k_tile = shared_address(memory), q_tiles = k_tile + 2 * K::kKeyBytes;
  const std::uint32_t statistics = k_tile + K::kStatistics;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim;
  const int group = a.heads / a.kv_heads, lane = lane_index();
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.keys, a.kv_heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin, first_key = work.position * kKeys;
    const std::int64_t token = work.document.begin + first_key;
    const std::int64_t k_at = token * width + (a.heads + work.head) * kHeadDim;
    TileReader<kHeadDim, T>(a.qkv + k_at, width, length - first_key)
        .template load_both<kKeys>(k_tile, k_tile + K::kKeyBytes, a.kv_heads * kHeadDim);

    Queries queries(a, work);
    const int query_tiles = queries.tiles();
    const auto load_queries = [&](int stage) {
      queries.load(q_tiles + stage * 2 * Queries::kTileBytes, statistics + stage * 2 * Queries::kRowBytes);
    };
    load_queries(0);

    const int part = (warp_index() + queue.index()) % kWarps;
    const int first_row = first_key + part * kWarpKeys;
    const std::uint32_t own_rows = k_tile + part * kWarpKeys * K::kRowBytes;
    float dk[kM][kHeadDim / 8][4] = {}, dv[kM][kHeadDim / 8][4] = {};

    int t = 0;  // of query_tiles, the first of which hold the diagonal
    for (int step = 0; step < query_tiles * group; ++step) {
      await_copies();
      __syncthreads();  // the tile is here, and no warp reads the other one any more
      const int first_query = first_key + t * kQueries;
      if (++t == query_tiles) t = 0;
      if (step + 1 < query_tiles * group) load_queries((step + 1) % 2);
      if (first_row >= length || first_row >= first_query + kQueries) continue;
      const std::uint32_t q_tile = q_tiles + step % 2 * 2 * Queries::kTileBytes;
      const std::uint32_t dout_tile = q_tile + Queries::kTileBytes;
      const std::uint32_t lse_row = statistics + step % 2 * 2 * Queries::kRowBytes + lane % 4 * 8;

      float p[kM][kN][4];
      multiply_rows<Math, kHeadDim>(p, own_rows, q_tile);
      if (first_query < first_key + kKeys) hide_later_keys<true>(p, first_row, first_query);
      if (first_query + kQueries - 1 - first_row >= a.window) hide_far_keys<true>(p, first_row, first_query, a.window);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 lse = load_shared_pair(lse_row + n * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float lse_log2 = (i % 2 ? lse.y : lse.x) * kLog2E;
#pragma unroll
          for (int m = 0; m < kM; ++m) p[m][n][i] = exp2_approx(p[m][n][i] * scale_log2 - lse_log2);
        }
      }
      multiply_weights<Math, kHeadDim>(dv, p, dout_tile);

      float dp[kM][kN][4];
      multiply_rows<Math, kHeadDim>(dp, own_rows + K::kKeyBytes, dout_tile);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 delta = load_shared_pair(lse_row + Queries::kRowBytes + n * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int m = 0; m < kM; ++m) p[m][n][i] *= dp[m][n][i] - (i % 2 ? delta.y : delta.x);
        }
      }
      multiply_weights<Math, kHeadDim>(dk, p, q_tile);
    }

    if (first_row >= length) continue;
    const float one[kM][2] = {{1, 1}}, factor[kM][2] = {{a.scale, a.scale}};
    T* to = a.dqkv + (work.document.begin + first_row) * static_cast<std::int64_t>(width) +
            (a.heads + work.head) * kHeadDim;
    store_rows<kHeadDim>(dk, factor, own_rows, to, width, length - first_row);
    store_rows<kHeadDim>(dv, one, own_rows + K::kKeyBytes, to + a.kv_heads * kHeadDim, width, length - first_row);
  }
}

}  // namespace key

template <class Math, int kHeadDim>
void launch_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  using Q = query::Tiles<Math, kHeadDim>;
  using K = key::Tiles<Math, kHeadDim>;
  const int blocks = launch.multiprocessors * kBlocks<kHeadDim>;
  auto a = arguments_of<Element<Math>>(op);
  a.queries = tile_list(op, Q::kQueries), a.keys = tile_list(op, K::kKeys);
  const auto start = [&](auto* kernel, std::size_t bytes) {
    device::cuda::allow_shared(kernel, bytes);
    kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, launch.stream>>>(a);
    REDLINE_LAUNCHED();
  };
  start(query::query_kernel<Math, kHeadDim>, Q::kBytes);
  start(key::key_kernel<Math, kHeadDim>, K::kBytes);
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

void flash_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  with_math(op, [&]<class Math, int kHeadDim>() { launch_backward<Math, kHeadDim>(op, launch); });
}

}  // namespace redline::ops::cuda
