// Causal attention within packed documents, backward, on tensor cores:
//   p = exp2((q k^T) * scale * log2 e - lse * log2 e);  delta = rowsum(dout * out);  ds = p * (dout v^T - delta)
//   dq = scale ds k;  dv = p^T dout;  dk = scale ds^T q
// Two kernels, each the only writer of its rows, so no atomics and one order; the price is that both compute q k^T and
// dout v^T, 7 products where 5 would do. All matrices between two products stay in registers.
//   query_kernel: a block takes 128 queries of a head, a warp 32 of them, over tiles of 32 keys; writes delta and dq.
//   key_kernel: a block takes 64 keys of a key/value head, a warp 16 of them, over the 64-query tiles of all heads of
//   the group; keys are rows, so p^T and ds^T come out as the left operands that dv and dk want.
#include <array>

#include "ops/cuda/attention_backends.h"
#include "ops/cuda/attention_pass.cuh"

namespace redline::ops::cuda {
namespace {

// How many blocks a multiprocessor holds: of both kernels, by registers and on Hopper by shared memory too.
template <int kHeadDim>
constexpr int kBlocks = kHeadDim == 64 ? 3 : 2;

namespace query {

constexpr int kQueries = 128, kKeys = 32, kWarpQueries = kQueries / kWarps, kM = kWarpQueries / 16, kN = kKeys / 8;

template <int kHeadDim>
struct Memory {
  static constexpr int kQueryBytes = kQueries * kHeadDim * 2, kKeyBytes = kKeys * kHeadDim * 2;
  static constexpr int kDelta = 2 * kQueryBytes + 4 * kKeyBytes, kBytes = kDelta + kQueries * 4;
};

// One warp: delta of its queries, head_dim / 8 lanes a row, to global memory for key_kernel and to delta_shared for
// itself.
template <int kHeadDim>
__device__ inline void fill_delta(const __nv_bfloat16* out, const __nv_bfloat16* dout, int stride, int present,
                                  float* delta, float* delta_shared) {
  constexpr int kLanes = kHeadDim / 8;
  const int lane = lane_index(), column = lane % kLanes * 8;
#pragma unroll 4
  for (int i = 0; i < kWarpQueries * kLanes / 32; ++i) {
    const int row = i * (32 / kLanes) + lane / kLanes;
    float sum = 0;
    if (row < present) {
      const std::int64_t at = static_cast<std::int64_t>(row) * stride + column;
      const uint4 o = *reinterpret_cast<const uint4*>(out + at), d = *reinterpret_cast<const uint4*>(dout + at);
      sum = dot_chunk(o, d);
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

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, kBlocks<kHeadDim>) void query_kernel(const GradArguments a) {
  using Memory = Memory<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t q_tile = shared_address(memory), kv_tiles = q_tile + 2 * Memory::kQueryBytes;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim, out_width = a.heads * kHeadDim;
  const int group = a.heads / a.kv_heads, lane = lane_index();
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.queries, a.heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin;
    const int first_query = (work.document.tiles - 1 - work.position) * kQueries;
    const int key_tiles = (min(length, first_query + kQueries) + kKeys - 1) / kKeys;
    const std::int64_t token = work.document.begin + first_query;
    const __nv_bfloat16* k =
        a.qkv + static_cast<std::int64_t>(work.document.begin) * width + (a.heads + work.head / group) * kHeadDim;
    TileReader<kHeadDim> keys(k, width, length);
    const auto load_keys = [&](int t) {
      const std::uint32_t tile = kv_tiles + t % 2 * 2 * Memory::kKeyBytes;
      keys.template load_both<kKeys>(tile, tile + Memory::kKeyBytes, a.kv_heads * kHeadDim);
    };
    TileReader<kHeadDim>(a.qkv + token * width + work.head * kHeadDim, width, length - first_query)
        .template load<kQueries>(q_tile);
    TileReader<kHeadDim>(a.dout + token * out_width + work.head * kHeadDim, out_width, length - first_query)
        .template load<kQueries>(q_tile + Memory::kQueryBytes);
    load_keys(0);

    // As in the forward kernel: the warps with least to do change from piece to piece.
    const int part = (warp_index() + queue.index()) % kWarps;
    const int first_row = first_query + part * kWarpQueries;
    const std::uint32_t own_rows = q_tile + part * kWarpQueries * kHeadDim * 2;
    const int own_tiles = first_row < length ? (first_row + kWarpQueries + kKeys - 1) / kKeys : 0;
    float dq[kM][kHeadDim / 8][4] = {};
    float lse_log2[kM][2], delta[kM][2];
    if (own_tiles > 0) {
      const std::int64_t own = work.document.begin + first_row, at = work.head * static_cast<std::int64_t>(a.n) + own;
      float* delta_shared = reinterpret_cast<float*>(memory + Memory::kDelta) + part * kWarpQueries;
      const std::int64_t from = own * out_width + work.head * kHeadDim;
      fill_delta<kHeadDim>(a.out + from, a.dout + from, out_width, length - first_row, a.delta + at, delta_shared);
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
      __syncthreads();  // tile t is here, and nobody reads the other one any more
      if (t + 1 < key_tiles) load_keys(t + 1);
      if (t >= own_tiles) continue;
      const std::uint32_t k_tile = kv_tiles + t % 2 * 2 * Memory::kKeyBytes;
      float s[kM][kN][4], dp[kM][kN][4];
      multiply_rows<kHeadDim>(s, own_rows, k_tile);
      if ((t + 1) * kKeys - 1 > first_row) hide_later_keys<false>(s, first_row, t * kKeys);
      multiply_rows<kHeadDim>(dp, own_rows + Memory::kQueryBytes, k_tile + Memory::kKeyBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float p = exp2_approx(s[m][n][i] * scale_log2 - lse_log2[m][i / 2]);
            s[m][n][i] = p * (dp[m][n][i] - delta[m][i / 2]);
          }
        }
      }
      std::uint32_t ds[kM][kN / 2][4];
      round_to_weights(ds, s);
      multiply_weights<kHeadDim>(dq, ds, k_tile);
    }

    if (own_tiles == 0) continue;
    const float factor[kM][2] = {{a.scale, a.scale}, {a.scale, a.scale}};
    __nv_bfloat16* to = a.dqkv + (work.document.begin + first_row) * static_cast<std::int64_t>(width);
    store_rows<kHeadDim>(dq, factor, own_rows, to + work.head * kHeadDim, width, length - first_row);
  }
  clear_rows(a.dqkv, static_cast<std::int64_t>(width) * 2, *a.documents_end, a.n);
}

}  // namespace query

namespace key {

constexpr int kKeys = 64, kQueries = 64, kWarpKeys = kKeys / kWarps, kM = kWarpKeys / 16, kN = kQueries / 8;

template <int kHeadDim>
struct Memory {
  static constexpr int kTileBytes = kKeys * kHeadDim * 2;     // of keys as of queries
  static constexpr int kRowBytes = kQueries * 4;              // lse or delta of a tile
  static constexpr int kStatistics = 6 * kTileBytes;          // K V | Q dout | Q dout
  static constexpr int kBytes = kStatistics + 4 * kRowBytes;  // lse delta | lse delta
};

template <int kHeadDim>
__global__ __launch_bounds__(kThreads, kBlocks<kHeadDim>) void key_kernel(const GradArguments a) {
  using Memory = Memory<kHeadDim>;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int next[2];
  const std::uint32_t k_tile = shared_address(memory), q_tiles = k_tile + 2 * Memory::kTileBytes;
  const std::uint32_t statistics = k_tile + Memory::kStatistics;
  const int width = (a.heads + 2 * a.kv_heads) * kHeadDim;
  const int group = a.heads / a.kv_heads, lane = lane_index();
  const float scale_log2 = a.scale * kLog2E;

  for (WorkQueue queue(a.keys, a.kv_heads, next); queue.more(); queue.take_next()) {
    const Work work = queue.work();
    const int length = work.document.end - work.document.begin, first_key = work.position * kKeys;
    const int query_tiles = work.document.tiles - work.position;
    const std::int64_t token = work.document.begin + first_key;
    const std::int64_t k_at = token * width + (a.heads + work.head) * kHeadDim;
    TileReader<kHeadDim>(a.qkv + k_at, width, length - first_key)
        .template load_both<kKeys>(k_tile, k_tile + Memory::kTileBytes, a.kv_heads * kHeadDim);

    SeeingQueries<kHeadDim, kKeys> queries(a, work);
    const auto load_queries = [&](int stage) {
      queries.load(q_tiles + stage * 2 * Memory::kTileBytes, statistics + stage * 2 * Memory::kRowBytes);
    };
    load_queries(0);

    const int part = (warp_index() + queue.index()) % kWarps;
    const int first_row = first_key + part * kWarpKeys;
    const std::uint32_t own_rows = k_tile + part * kWarpKeys * kHeadDim * 2;
    float dk[kM][kHeadDim / 8][4] = {}, dv[kM][kHeadDim / 8][4] = {};

    int t = 0;  // of query_tiles; tile 0 holds the diagonal
    for (int step = 0; step < query_tiles * group; ++step) {
      await_copies();
      __syncthreads();  // the tile is here, and nobody reads the other one any more
      const bool diagonal = t == 0;
      if (++t == query_tiles) t = 0;
      if (step + 1 < query_tiles * group) load_queries((step + 1) % 2);
      if (first_row >= length) continue;
      const std::uint32_t q_tile = q_tiles + step % 2 * 2 * Memory::kTileBytes, dout_tile = q_tile + Memory::kTileBytes;
      const std::uint32_t lse_row = statistics + step % 2 * 2 * Memory::kRowBytes + lane % 4 * 8;

      float p[kM][kN][4];
      multiply_rows<kHeadDim>(p, own_rows, q_tile);
      if (diagonal) hide_later_keys<true>(p, first_row, first_key);
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
      std::uint32_t weights[kM][kN / 2][4];
      round_to_weights(weights, p);
      multiply_weights<kHeadDim>(dv, weights, dout_tile);

      float dp[kM][kN][4];
      multiply_rows<kHeadDim>(dp, own_rows + Memory::kTileBytes, dout_tile);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 delta = load_shared_pair(lse_row + Memory::kRowBytes + n * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int m = 0; m < kM; ++m) p[m][n][i] *= dp[m][n][i] - (i % 2 ? delta.y : delta.x);
        }
      }
      round_to_weights(weights, p);
      multiply_weights<kHeadDim>(dk, weights, q_tile);
    }

    if (first_row >= length) continue;
    const float one[kM][2] = {{1, 1}}, factor[kM][2] = {{a.scale, a.scale}};
    __nv_bfloat16* to = a.dqkv + (work.document.begin + first_row) * static_cast<std::int64_t>(width) +
                        (a.heads + work.head) * kHeadDim;
    store_rows<kHeadDim>(dk, factor, own_rows, to, width, length - first_row);
    store_rows<kHeadDim>(dv, one, own_rows + Memory::kTileBytes, to + a.kv_heads * kHeadDim, width, length - first_row);
  }
}

}  // namespace key

template <int kHeadDim>
void launch_backward(GradArguments a, const AttentionGrad<Tensor>& op, const Launch& launch) {
  const int blocks = launch.multiprocessors * kBlocks<kHeadDim>;
  std::array<Plan, 2> plans{Plan{.tile = query::kQueries, .blocks = blocks},
                            Plan{.tile = key::kKeys, .blocks = blocks}};
  plan_documents(op.doc_offsets, op.qkv.rows(), plans, launch);
  a.queries = plans[0], a.keys = plans[1];
  const auto start = [&](auto* kernel, int bytes) {
    REDLINE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(bytes), launch.stream>>>(a);
    REDLINE_LAUNCHED();
  };
  start(query::query_kernel<kHeadDim>, query::Memory<kHeadDim>::kBytes);
  start(key::key_kernel<kHeadDim>, key::Memory<kHeadDim>::kBytes);
}

}  // namespace

void flash_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  const GradArguments a = arguments_of(op);
  op.layout.head_dim == 64 ? launch_backward<64>(a, op, launch) : launch_backward<128>(a, op, launch);
}

}  // namespace redline::ops::cuda
