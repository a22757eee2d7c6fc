// A decoding step over cached keys and values: for keys j of a split, s = scale q.k;  top' = max(top, s);
//   out = out * exp(top - top') + exp(s - top') v;  sum likewise;  then the splits are joined in the same way.
// A block has a split of one slot's keys for up to kHeads query heads of one key/value head, so that a key is read once
// for all of them; its warps take keys in turn, lane l holds columns l, l + 32, ... of a row. Splits are cut from the
// text's own length, which is in device memory: a captured step stays true while the text grows. The new token's key
// and value are read from qkv, never from the cache, so no other block reads what the block that writes them there
// writes.
#include <cfloat>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kWarps = 4, kHeads = 4;
constexpr int kLeastKeys = 64;  // of a split: fewer are not worth a block

struct CacheShape {
  int slots, kv_heads, capacity, head_dim;
  int heads, splits, rows;

  __device__ int group() const { return heads / kv_heads; }
  __device__ std::int64_t cache_row(int slot, int kv_head, int position) const {
    return ((std::int64_t{slot} * kv_heads + kv_head) * capacity + position) * head_dim;
  }
  // Heads count over q, then k, then v.
  __device__ std::int64_t qkv_row(int token, int head) const {
    return (std::int64_t{token} * (heads + 2 * kv_heads) + head) * head_dim;
  }
  __device__ std::int64_t partial_row(int slot, int head, int split) const {
    return ((std::int64_t{slot} * heads + head) * splits + split) * (head_dim + 2);
  }
  // The cache of a window is a ring: a text that is longer has its last positions there.
  __device__ int keys_of_text(int position) const { return min(position + 1, capacity); }
  __device__ int keys_of_split(int length) const { return max(kLeastKeys, (length + splits - 1) / splits); }
};

template <class T>
__device__ float at(const T* row, int column) {
  return load<1>(row + column)[0];
}

template <class T>
struct Arguments {
  const T* qkv;
  const int* positions;
  T *keys, *values, *out;
  float* partial;
  float scale;
};

// The sum over some keys for one query: lane l has its columns of out.
template <int kWidth>
struct Sum {
  float top = -FLT_MAX, sum = 0, out[kWidth] = {};

  __device__ void add(float score, const float (&v)[kWidth]) {
    const float higher = fmaxf(top, score), correction = expf(top - higher), p = expf(score - higher);
    sum = sum * correction + p;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = out[i] * correction + p * v[i];
    top = higher;
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kWarps* kWarp) attend_split(const Arguments<T> op, const CacheShape l) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int chunks = (l.group() + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.x / chunks, chunk = blockIdx.x % chunks, slot = blockIdx.y, split = blockIdx.z;
  const int first_head = kv_head * l.group() + chunk * kHeads, heads = min(kHeads, l.group() - chunk * kHeads);
  const int length = l.keys_of_text(op.positions[slot]), position = op.positions[slot] % l.capacity;
  const int keys_of_split = l.keys_of_split(length);
  const int begin = min(split * keys_of_split, length), end = min(begin + keys_of_split, length);
  const T* new_key = op.qkv + l.qkv_row(slot, l.heads + kv_head);
  const T* new_value = op.qkv + l.qkv_row(slot, l.heads + l.kv_heads + kv_head);

  float q[kHeads][kWidth];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int column = lane + i * kWarp;
      q[h][i] =
          h < heads && column < l.head_dim ? op.scale * at(op.qkv + l.qkv_row(slot, first_head + h), column) : 0.0f;
    }
  }

  Sum<kWidth> sums[kHeads];
  for (int j = begin + warp; j < end; j += kWarps) {
    const bool is_new = j == position;
    const T* key = is_new ? new_key : op.keys + l.cache_row(slot, kv_head, j);
    const T* value = is_new ? new_value : op.values + l.cache_row(slot, kv_head, j);
    float k[kWidth], v[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int column = lane + i * kWarp;
      k[i] = column < l.head_dim ? at(key, column) : 0.0f;
      v[i] = column < l.head_dim ? at(value, column) : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) score += q[h][i] * k[i];
      sums[h].add(warp_sum(score), v);
    }
  }

  if (chunk == 0 && begin <= position && position < end) {
    for (int column = threadIdx.x; column < l.head_dim; column += kWarps * kWarp) {
      op.keys[l.cache_row(slot, kv_head, position) + column] = new_key[column];
      op.values[l.cache_row(slot, kv_head, position) + column] = new_value[column];
    }
  }

  // The warps' parts, in their order.
  __shared__ float tops[kHeads][kWarps], parts[kHeads][kWarps], outs[kWarps][kWidth * kWarp];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) {
      tops[h][warp] = sums[h].top;
      parts[h][warp] = sums[h].sum;
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWidth; ++i) outs[warp][lane + i * kWarp] = sums[h].out[i];
    __syncthreads();
    if (h >= heads) continue;  // the same for the whole block
    float top = -FLT_MAX, sum = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[h][w]);
    for (int w = 0; w < kWarps; ++w) sum += parts[h][w] * expf(tops[h][w] - top);
    float* partial = op.partial + l.partial_row(slot, first_head + h, split);
    for (int column = threadIdx.x; column < l.head_dim; column += kWarps * kWarp) {
      float out = 0;
      for (int w = 0; w < kWarps; ++w) out += outs[w][column] * expf(tops[h][w] - top);
      partial[column] = out;
    }
    if (threadIdx.x == 0) {
      partial[l.head_dim] = top;
      partial[l.head_dim + 1] = sum;
    }
  }
}

// One block a (row, head).
template <class T>
__global__ void __launch_bounds__(kWarp) join_splits(const Arguments<T> op, const CacheShape l) {
  const int head = blockIdx.x, row = blockIdx.y;
  T* out = op.out + (std::int64_t{row} * l.heads + head) * l.head_dim;
  float top = -FLT_MAX, sum = 0;
  int splits = 0;
  if (row < l.slots) {
    const int length = l.keys_of_text(op.positions[row]), keys = l.keys_of_split(length);
    splits = (length + keys - 1) / keys;
  }
  for (int s = 0; s < splits; ++s) top = fmaxf(top, op.partial[l.partial_row(row, head, s) + l.head_dim]);
  for (int s = 0; s < splits; ++s) {
    const float* partial = op.partial + l.partial_row(row, head, s);
    sum += partial[l.head_dim + 1] * expf(partial[l.head_dim] - top);
  }
  for (int column = threadIdx.x; column < l.head_dim; column += kWarp) {
    float value[1] = {0};
    for (int s = 0; s < splits; ++s) {
      const float* partial = op.partial + l.partial_row(row, head, s);
      value[0] += partial[column] * expf(partial[l.head_dim] - top);
    }
    if (splits > 0) value[0] /= sum;
    store(out + column, value);
  }
}

// One thread an element of a token's keys, and the same of its values.
template <class T>
__global__ void __launch_bounds__(kPlaceThreads)
    store_document(const T* qkv, const int* doc_offsets, const int* slot_documents, T* keys, T* values,
                   const CacheShape l) {
  const int width = l.kv_heads * l.head_dim, slot = blockIdx.y, document = slot_documents[slot];
  if (document < 0) return;
  const std::int64_t index = std::int64_t{blockIdx.x} * kPlaceThreads + threadIdx.x;
  const int t = static_cast<int>(index / width), column = static_cast<int>(index % width);
  const int begin = doc_offsets[document], end = doc_offsets[document + 1];
  if (t >= end - begin || t < end - begin - l.capacity) return;
  const int head = column / l.head_dim, element = column % l.head_dim;
  const std::int64_t to = l.cache_row(slot, head, t % l.capacity) + element;
  keys[to] = qkv[l.qkv_row(begin + t, l.heads + head) + element];
  values[to] = qkv[l.qkv_row(begin + t, l.heads + l.kv_heads + head) + element];
}

CacheShape shape_of(const HeadLayout& layout, const Tensor& keys, std::int64_t splits, std::int64_t rows) {
  const auto i = [](std::int64_t x) { return static_cast<int>(x); };
  return {i(keys.shape[0]), i(layout.kv_heads), i(keys.shape[2]), i(layout.head_dim),
          i(layout.heads),  i(splits),          i(rows)};
}

template <class T, int kWidth>
void attend(const Arguments<T>& arguments, const CacheShape& l, cudaStream_t stream) {
  const int chunks = ceil_div(l.heads / l.kv_heads, kHeads);
  const dim3 blocks(static_cast<unsigned>(l.kv_heads * chunks), static_cast<unsigned>(l.slots),
                    static_cast<unsigned>(l.splits));
  attend_split<T, kWidth><<<blocks, kWarps * kWarp, 0, stream>>>(arguments, l);
  REDLINE_LAUNCHED();
}

}  // namespace

void run(const CacheStore<Tensor>& op, const Launch& launch) {
  const CacheShape l = shape_of(op.layout, op.keys, 1, op.qkv.rows());
  for_type_and_width(op.qkv.dtype, false, [&]<class T, int kOne>() {
    const unsigned blocks = blocks_for(op.qkv.rows() * op.layout.kv_heads * op.layout.head_dim, kPlaceThreads);
    store_document<T><<<dim3(blocks, static_cast<unsigned>(l.slots)), kPlaceThreads, 0, launch.stream>>>(
        op.qkv.as<T>(), op.doc_offsets.i32(), op.slot_documents.i32(), op.keys.as<T>(), op.values.as<T>(), l);
    REDLINE_LAUNCHED();
  });
}

void run(const AttentionCached<Tensor>& op, const Launch& launch) {
  const CacheShape l = shape_of(op.layout, op.keys, op.partial.shape[2], op.qkv.rows());
  REDLINE_CHECK(l.head_dim <= 8 * kWarp, "no kernel for heads of {}", l.head_dim);
  for_type_and_width(op.qkv.dtype, false, [&]<class T, int kOne>() {
    const Arguments<T> arguments{op.qkv.as<T>(), op.positions.i32(), op.keys.as<T>(), op.values.as<T>(),
                                 op.out.as<T>(), op.partial.f32(),   op.scale};
    if (l.head_dim <= 2 * kWarp)
      attend<T, 2>(arguments, l, launch.stream);
    else if (l.head_dim <= 4 * kWarp)
      attend<T, 4>(arguments, l, launch.stream);
    else
      attend<T, 8>(arguments, l, launch.stream);
    join_splits<T><<<dim3(static_cast<unsigned>(l.heads), static_cast<unsigned>(l.rows)), kWarp, 0, launch.stream>>>(
        arguments, l);
    REDLINE_LAUNCHED();
  });
}

}  // namespace redline::ops::cuda
