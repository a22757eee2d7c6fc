// What the tiled attention kernels, flash's and Hopper's, have in common beside tiles: what they are told, how a block
// walks over the queries that see its keys, and the tail of a batch.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/attention_plan.cuh"
#include "ops/cuda/attention_tiles.cuh"

namespace redline::ops::cuda {

struct ForwardArguments {
  const __nv_bfloat16* qkv;
  const int* documents_end;
  __nv_bfloat16* out;
  float* lse;
  int n, heads, kv_heads;
  float scale;
  Plan plan;
};

struct GradArguments {
  const __nv_bfloat16 *qkv, *out, *dout;
  const float* lse;
  const int* documents_end;
  __nv_bfloat16* dqkv;
  float* delta;
  int n, heads, kv_heads;
  float scale;
  Plan queries, keys;
};

// All but the plans.
inline ForwardArguments arguments_of(const Attention<Tensor>& op) {
  return {.qkv = op.qkv.as<__nv_bfloat16>(),
          .documents_end = op.doc_offsets.i32() + op.doc_offsets.elements() - 1,
          .out = op.out.as<__nv_bfloat16>(),
          .lse = op.lse.f32(),
          .n = static_cast<int>(op.qkv.rows()),
          .heads = static_cast<int>(op.layout.heads),
          .kv_heads = static_cast<int>(op.layout.kv_heads),
          .scale = op.scale,
          .plan = {}};
}
inline GradArguments arguments_of(const AttentionGrad<Tensor>& op) {
  return {.qkv = op.qkv.as<__nv_bfloat16>(),
          .out = op.out.as<__nv_bfloat16>(),
          .dout = op.dout.as<__nv_bfloat16>(),
          .lse = op.lse.f32(),
          .documents_end = op.doc_offsets.i32() + op.doc_offsets.elements() - 1,
          .dqkv = op.dqkv.as<__nv_bfloat16>(),
          .delta = op.delta.f32(),
          .n = static_cast<int>(op.qkv.rows()),
          .heads = static_cast<int>(op.layout.heads),
          .kv_heads = static_cast<int>(op.layout.kv_heads),
          .scale = op.scale,
          .queries = {},
          .keys = {}};
}

// The tokens after the last document attend to nothing.
template <int kHeadDim>
__device__ inline void clear_tail(const ForwardArguments& a) {
  clear_rows(a.out, a.heads * kHeadDim * 2, *a.documents_end, a.n);
  for (int h = static_cast<int>(blockIdx.x); h < a.heads; h += static_cast<int>(gridDim.x)) {
    for (int i = *a.documents_end + static_cast<int>(threadIdx.x); i < a.n; i += kThreads) {
      a.lse[static_cast<std::int64_t>(h) * a.n + i] = 0;
    }
  }
}

// The queries and douts, with lse and delta, that see a piece's keys, in tiles of as many tokens as the piece has: they
// start at the diagonal, and start there again for every head of the group.
template <int kHeadDim, int kTokens>
class SeeingQueries {
 public:
  static constexpr int kTileBytes = kTokens * kHeadDim * 2, kRowBytes = kTokens * 4;

  __device__ SeeingQueries(const GradArguments& a, const Work& work)
      : a_(a),
        document_(work.document),
        first_(work.position * kTokens),
        tiles_(work.document.tiles - work.position),
        head_(work.head * (a.heads / a.kv_heads)) {
    start_head();
  }
  __device__ int tiles() const { return tiles_; }  // of one head

  // The next tile: Q and dout behind each other, and lse and delta, where there is no query 0.
  __device__ void load(std::uint32_t to, std::uint32_t statistics) {
    queries_.template load<kTokens>(to);
    douts_.template load<kTokens>(to + kTileBytes);
    // The first half of the threads copies lse, the second delta.
    static_assert(kThreads == 2 * kTokens);
    const int length = document_.end - document_.begin, thread = static_cast<int>(threadIdx.x);
    const int row = first_ + tile_ * kTokens + thread % kTokens;
    const float* from = (thread < kTokens ? a_.lse : a_.delta) + static_cast<std::int64_t>(head_) * a_.n;
    copy_4(statistics + thread * 4, from + document_.begin + min(row, length - 1), row < length);
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
    queries_ = TileReader<kHeadDim>(a_.qkv + token * width + head_ * kHeadDim, width, present);
    douts_ = TileReader<kHeadDim>(a_.dout + token * out_width + head_ * kHeadDim, out_width, present);
    tile_ = 0;
  }

  const GradArguments& a_;
  PlannedDocument document_;
  int first_, tiles_, head_, tile_ = 0;  // the first query, tiles a head; the head and the tile to load next
  TileReader<kHeadDim> queries_, douts_;
};

}  // namespace redline::ops::cuda
