// The common part of the tiled attention kernels, flash's and Hopper's, beside tiles: their parameters, the walk of a
// block over the queries that see its keys, and the tail of a batch.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/attention_documents.cuh"
#include "ops/cuda/attention_tiles.cuh"

namespace redline::ops::cuda {

template <class T = __nv_bfloat16>
struct ForwardArguments {
  const T* qkv;
  const int* documents_end;
  T* out;
  float* lse;
  int n, heads, kv_heads;
  float scale;
  int window;
  TileList tiles;
};

template <class T = __nv_bfloat16>
struct GradArguments {
  const T *qkv, *out, *dout;
  const float* lse;
  const int* documents_end;
  T* dqkv;
  float* delta;
  int n, heads, kv_heads;
  float scale;
  int window;
  TileList queries, keys;
};

// The keys that a query sees at most; more than any document has where there is no window.
inline int window_of(std::int64_t window) {
  constexpr std::int64_t kAll = std::int64_t{1} << 30;
  return static_cast<int>(window == kNoWindow || window > kAll ? kAll : window);
}

// The parameters without the lists of tiles.
template <class T = __nv_bfloat16>
ForwardArguments<T> arguments_of(const Attention<Tensor>& op) {
  return {.qkv = op.qkv.as<T>(),
          .documents_end = op.doc_offsets.i32() + op.doc_offsets.elements() - 1,
          .out = op.out.as<T>(),
          .lse = op.lse.f32(),
          .n = static_cast<int>(op.qkv.rows()),
          .heads = static_cast<int>(op.layout.heads),
          .kv_heads = static_cast<int>(op.layout.kv_heads),
          .scale = op.scale,
          .window = window_of(op.window),
          .tiles = {}};
}
template <class T = __nv_bfloat16>
GradArguments<T> arguments_of(const AttentionGrad<Tensor>& op) {
  return {.qkv = op.qkv.as<T>(),
          .out = op.out.as<T>(),
          .dout = op.dout.as<T>(),
          .lse = op.lse.f32(),
          .documents_end = op.doc_offsets.i32() + op.doc_offsets.elements() - 1,
          .dqkv = op.dqkv.as<T>(),
          .delta = op.delta.f32(),
          .n = static_cast<int>(op.qkv.rows()),
          .heads = static_cast<int>(op.layout.heads),
          .kv_heads = static_cast<int>(op.layout.kv_heads),
          .scale = op.scale,
          .window = window_of(op.window),
          .queries = {},
          .keys = {}};
}

// The arithmetic in which flash computes an op, and its heads: f<Math, kHeadDim>().
template <class Op, class F>
void with_math(const Op& op, const F& f) {
  const auto with_head = [&]<class Math>() {
    op.layout.head_dim == 64 ? f.template operator()<Math, 64>() : f.template operator()<Math, 128>();
  };
  if (op.qkv.dtype == DType::bf16) return with_head.template operator()<Bf16>();
  op.how.math == ops::Math::tf32 ? with_head.template operator()<Tf32>() : with_head.template operator()<Fp32>();
}

// The first tile of kKeys keys that any of a tile of queries sees, by the first of them.
template <int kKeys>
__device__ inline int first_key_tile(int first_query, int window) {
  return max(first_query + 1 - window, 0) / kKeys;
}

// The tokens after the last document attend to nothing.
template <int kHeadDim, class T>
__device__ inline void clear_tail(const ForwardArguments<T>& a) {
  clear_rows(a.out, a.heads * kHeadDim * static_cast<int>(sizeof(T)), *a.documents_end, a.n);
  for (int h = static_cast<int>(blockIdx.x); h < a.heads; h += static_cast<int>(gridDim.x)) {
    for (int i = *a.documents_end + static_cast<int>(threadIdx.x); i < a.n; i += kThreads) {
      a.lse[static_cast<std::int64_t>(h) * a.n + i] = 0;
    }
  }
}

// The queries and douts, with lse and delta, that see a piece's kKeys keys, in tiles of kTokens, which divides that:
// they start at the diagonal, and start there again for every head of the group. A window ends them.
template <int kHeadDim, int kKeys, int kTokens = kKeys, class T = __nv_bfloat16>
class SeeingQueries {
 public:
  static constexpr int kTileBytes = kTokens * TileRows<kHeadDim, T>::kRowBytes, kRowBytes = kTokens * 4;

  __device__ SeeingQueries(const GradArguments<T>& a, const Work& work)
      : a_(a),
        document_(work.document),
        first_(work.position * kKeys),
        tiles_(min(kTokens == kKeys ? work.document.tiles - work.position
                                    : (work.document.end - work.document.begin - first_ + kTokens - 1) / kTokens,
                   (a.window + kKeys + kTokens - 2) / kTokens)),
        head_(work.head * (a.heads / a.kv_heads)) {
    start_head();
  }
  __device__ int tiles() const { return tiles_; }  // of one head

  // The next tile: Q, then dout, and lse and delta, where there is no query 0.
  __device__ void load(std::uint32_t to, std::uint32_t statistics) {
    queries_.template load<kTokens>(to);
    douts_.template load<kTokens>(to + kTileBytes);
    // Some threads copy lse, as many others delta.
    static_assert(kThreads >= 2 * kTokens && kKeys % kTokens == 0);
    const int length = document_.end - document_.begin, thread = static_cast<int>(threadIdx.x);
    if (kThreads == 2 * kTokens || thread < 2 * kTokens) {
      const int row = first_ + tile_ * kTokens + thread % kTokens;
      const float* from = (thread < kTokens ? a_.lse : a_.delta) + static_cast<std::int64_t>(head_) * a_.n;
      copy_4(statistics + thread * 4, from + document_.begin + min(row, length - 1), row < length);
    }
    if (++tile_ == tiles_) {
      ++head_;
      start_head();
    }
  }

 private:
  __device__ void start_head() {
    const int width = (a_.heads + 2 * a_.kv_heads) * kHeadDim, out_width = a_.heads * kHeadDim;
    const int present = document_.end - document_.begin - first_;
    const std::int64_t token = document_.begin + first_;
    queries_ = TileReader<kHeadDim, T>(a_.qkv + token * width + head_ * kHeadDim, width, present);
    douts_ = TileReader<kHeadDim, T>(a_.dout + token * out_width + head_ * kHeadDim, out_width, present);
    tile_ = 0;
  }

  const GradArguments<T>& a_;
  PlannedDocument document_;
  int first_, tiles_, head_, tile_ = 0;  // the first query, tiles a head; the head and the tile to load next
  TileReader<kHeadDim, T> queries_, douts_;
};

}  // namespace redline::ops::cuda
