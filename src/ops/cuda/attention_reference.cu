// Causal attention within packed documents, plainly: for shapes and dtypes that no tiled kernel takes, and what those
// are checked against. Forward, keys j of the document up to the query:  s = scale q.k;  top' = max(top, s);
//   out = out * exp(top - top') + exp(s - top') v;  sum likewise;  at the end out /= sum, lse = top + log sum
// Backward:  p = exp(s - lse);  ds = p * (dout.v - delta) * scale;  dq += ds k;  dk += ds q;  dv += p dout.
// A warp takes one row: (token, head) for out and dq, (token, key/value head) for dk and dv, which it sums over the
// later queries of all heads of the group, so there are no atomics. Lane l holds columns l, l + 32, ... of the row.
#include <cuda_bf16.h>

#include "ops/cuda/attention_backends.h"

namespace redline::ops::cuda {
namespace {

constexpr int kWarp = 32, kWarps = 4;

struct Layout {
  const int* doc_offsets;
  int capacity, n, heads, kv_heads, head_dim, window;
  float scale;

  template <class Op>
  explicit Layout(const Op& op)
      : doc_offsets(op.doc_offsets.i32()),
        capacity(static_cast<int>(op.doc_offsets.elements() - 1)),
        n(static_cast<int>(op.qkv.rows())),
        heads(static_cast<int>(op.layout.heads)),
        kv_heads(static_cast<int>(op.layout.kv_heads)),
        head_dim(static_cast<int>(op.layout.head_dim)),
        window(op.window == kNoWindow ? n : static_cast<int>(op.window)),
        scale(op.scale) {}

  __device__ int group() const { return heads / kv_heads; }
  // Where a head's row starts in packed qkv; heads count over q, then k, then v.
  __device__ std::int64_t qkv_row(int token, int head) const {
    return (static_cast<std::int64_t>(token) * (heads + 2 * kv_heads) + head) * head_dim;
  }
  __device__ std::int64_t out_row(int token, int head) const {
    return (static_cast<std::int64_t>(token) * heads + head) * head_dim;
  }
  __device__ std::int64_t statistic(int token, int head) const { return static_cast<std::int64_t>(head) * n + token; }
  __device__ bool in_tail(int token) const { return token >= doc_offsets[capacity]; }
  // The last document that starts at or before the token holds it; empty ones start there too, but earlier in the list.
  __device__ int document_of(int token) const {
    int low = 0, high = capacity;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (doc_offsets[middle] <= token ? low : high) = middle;
    }
    return low;
  }
  // Of the keys that a query sees, and behind the queries that see a key.
  __device__ int first_key(int query) const { return max(doc_offsets[document_of(query)], query - window + 1); }
  __device__ int queries_end(int key) const { return min(doc_offsets[document_of(key) + 1], key + window); }
};

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void set(float& to, float x) { to = x; }
__device__ void set(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

__device__ float warp_sum(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

// One lane's columns of a row of up to 32 kWidth; columns past head_dim are 0.
template <int kWidth>
struct Row {
  float x[kWidth] = {};

  template <class T>
  __device__ static Row load(const T* from, int head_dim) {
    Row row;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int column = lane() + i * kWarp;
      if (column < head_dim) row.x[i] = to_float(from[column]);
    }
    return row;
  }
  template <class T>
  __device__ void store(T* to, int head_dim, float factor) const {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int column = lane() + i * kWarp;
      if (column < head_dim) set(to[column], x[i] * factor);
    }
  }
  __device__ float dot(const Row& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += x[i] * other.x[i];
    return warp_sum(sum);
  }
  __device__ void add(float factor, const Row& other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] += factor * other.x[i];
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] *= factor;
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
};

// The warp's row among all blocks: token major, heads next to each other.
struct Place {
  int token, head;
  __device__ explicit Place(int heads) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
    token = static_cast<int>(row / heads), head = static_cast<int>(row % heads);
  }
};

template <class T, int kWidth>
__global__ void forward_kernel(const Layout l, const T* qkv, T* out, float* lse) {
  using Row = Row<kWidth>;
  const Place place(l.heads);
  if (place.token >= l.n) return;
  Row sums;
  float top = -INFINITY, sum = 0;
  if (!l.in_tail(place.token)) {
    const Row q = Row::load(qkv + l.qkv_row(place.token, place.head), l.head_dim);
    const int k_head = l.heads + place.head / l.group();
    for (int j = l.first_key(place.token); j <= place.token; ++j) {
      const float s = l.scale * q.dot(Row::load(qkv + l.qkv_row(j, k_head), l.head_dim));
      const float higher = fmaxf(top, s), p = expf(s - higher), correction = expf(top - higher);
      sums.scale(correction);
      sums.add(p, Row::load(qkv + l.qkv_row(j, k_head + l.kv_heads), l.head_dim));
      sum = sum * correction + p;
      top = higher;
    }
  }
  const bool tail = sum == 0;  // a query sees itself at least
  sums.store(out + l.out_row(place.token, place.head), l.head_dim, tail ? 0 : 1 / sum);
  if (Row::lane() == 0) lse[l.statistic(place.token, place.head)] = tail ? 0 : top + logf(sum);
}

template <class T>
struct GradArrays {
  const T *qkv, *out, *dout;
  const float* lse;
  T* dqkv;
  float* delta;
};

// dq, and delta for key_kernel.
template <class T, int kWidth>
__global__ void query_kernel(const Layout l, const GradArrays<T> a) {
  using Row = Row<kWidth>;
  const Place place(l.heads);
  if (place.token >= l.n) return;
  const std::int64_t q_at = l.qkv_row(place.token, place.head), out_at = l.out_row(place.token, place.head);
  const std::int64_t statistic = l.statistic(place.token, place.head);
  Row dq;
  float delta = 0;
  if (!l.in_tail(place.token)) {
    const Row q = Row::load(a.qkv + q_at, l.head_dim), dout = Row::load(a.dout + out_at, l.head_dim);
    const float lse = a.lse[statistic];
    delta = dout.dot(Row::load(a.out + out_at, l.head_dim));
    const int k_head = l.heads + place.head / l.group();
    for (int j = l.first_key(place.token); j <= place.token; ++j) {
      const Row k = Row::load(a.qkv + l.qkv_row(j, k_head), l.head_dim);
      const Row v = Row::load(a.qkv + l.qkv_row(j, k_head + l.kv_heads), l.head_dim);
      const float p = expf(l.scale * q.dot(k) - lse);
      dq.add(p * (dout.dot(v) - delta), k);
    }
  }
  dq.store(a.dqkv + q_at, l.head_dim, l.scale);
  if (Row::lane() == 0) a.delta[statistic] = delta;
}

// dk and dv.
template <class T, int kWidth>
__global__ void key_kernel(const Layout l, const GradArrays<T> a) {
  using Row = Row<kWidth>;
  const Place place(l.kv_heads);
  if (place.token >= l.n) return;
  const std::int64_t k_at = l.qkv_row(place.token, l.heads + place.head);
  const std::int64_t v_at = l.qkv_row(place.token, l.heads + l.kv_heads + place.head);
  Row dk, dv;
  if (!l.in_tail(place.token)) {
    const Row k = Row::load(a.qkv + k_at, l.head_dim), v = Row::load(a.qkv + v_at, l.head_dim);
    const int end = l.queries_end(place.token);
    for (int h = place.head * l.group(); h < (place.head + 1) * l.group(); ++h) {
      for (int i = place.token; i < end; ++i) {
        const Row q = Row::load(a.qkv + l.qkv_row(i, h), l.head_dim);
        const Row dout = Row::load(a.dout + l.out_row(i, h), l.head_dim);
        const float p = expf(l.scale * q.dot(k) - a.lse[l.statistic(i, h)]);
        dv.add(p, dout);
        dk.add(p * (dout.dot(v) - a.delta[l.statistic(i, h)]), q);
      }
    }
  }
  dk.store(a.dqkv + k_at, l.head_dim, l.scale);
  dv.store(a.dqkv + v_at, l.head_dim, 1);
}

unsigned blocks_for(std::int64_t rows) { return static_cast<unsigned>((rows + kWarps - 1) / kWarps); }

template <class T, int kWidth>
void forward(const Attention<Tensor>& op, const Launch& launch) {
  const unsigned blocks = blocks_for(op.qkv.rows() * op.layout.heads);
  forward_kernel<T, kWidth>
      <<<blocks, kWarps * kWarp, 0, launch.stream>>>(Layout(op), op.qkv.as<T>(), op.out.as<T>(), op.lse.f32());
  REDLINE_LAUNCHED();
}

template <class T, int kWidth>
void backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  const GradArrays<T> a{.qkv = op.qkv.as<T>(),
                        .out = op.out.as<T>(),
                        .dout = op.dout.as<T>(),
                        .lse = op.lse.f32(),
                        .dqkv = op.dqkv.as<T>(),
                        .delta = op.delta.f32()};
  const unsigned query_blocks = blocks_for(op.qkv.rows() * op.layout.heads);
  const unsigned key_blocks = blocks_for(op.qkv.rows() * op.layout.kv_heads);
  query_kernel<T, kWidth><<<query_blocks, kWarps * kWarp, 0, launch.stream>>>(Layout(op), a);
  REDLINE_LAUNCHED();
  key_kernel<T, kWidth><<<key_blocks, kWarps * kWarp, 0, launch.stream>>>(Layout(op), a);
  REDLINE_LAUNCHED();
}

// Calls f with the type of an element and the number of columns a lane holds.
template <class Op, class F>
void with_type_and_width(const Op& op, const F& f) {
  const auto with_width = [&]<class T>(T) {
    if (op.layout.head_dim <= 64) return f.template operator()<T, 2>();
    if (op.layout.head_dim <= 128) return f.template operator()<T, 4>();
    return f.template operator()<T, 8>();
  };
  op.qkv.dtype == DType::f32 ? with_width(float{}) : with_width(__nv_bfloat16{});
}

}  // namespace

std::string reference_why_not(const AttentionCase& c) {
  if (c.dtype != DType::bf16 && c.dtype != DType::f32) return "it computes in bf16 and fp32";
  return c.layout.head_dim <= 256 ? "" : "it is built for head_dim up to 256";
}

void reference_forward(const Attention<Tensor>& op, const Launch& launch) {
  with_type_and_width(op, [&]<class T, int kWidth>() { forward<T, kWidth>(op, launch); });
}

void reference_backward(const AttentionGrad<Tensor>& op, const Launch& launch) {
  with_type_and_width(op, [&]<class T, int kWidth>() { backward<T, kWidth>(op, launch); });
}

}  // namespace redline::ops::cuda
