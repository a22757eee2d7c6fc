// Optional RMSNorm of each q and k head, then the rotation:  x[j] <- a c - b s,  x[j + half] <- b c + a s.
// Gradient: the opposite rotation, then, h = dy * w:  dx = rstd * (h - x * rstd^2 * mean(h * x));  dw (+)= sum of dy *
// x * rstd. A head is a power of two of lanes; a lane has kSteps times a vector of the lower half and its partner of
// the upper. Forward, and backward without a norm, one such group has one head of one token, and as many threads as fit
// are resident: four heads a group, sharing the angles, reached 82% of the copy rate instead of 92. With a norm's gradient a
// block has one of kRowGroups groups of tokens, first their q heads, then their k heads; its groups of lanes take heads
// in turn, so a lane's part of dw stays in registers. (Reading ahead through shared memory was no faster there.)
#include <algorithm>
#include <bit>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 128;      // of a block, where heads are independent
constexpr int kGradThreads = 256;  // two such blocks a multiprocessor

// Steps of a lane: head_dim up to 256 in fp32 vectors, 512 otherwise.
template <int kWidth>
constexpr int kStepsOfLane = kWidth == 1 ? 8 : 1;
// Blocks of a multiprocessor that registers must suffice for.
template <int kWidth, bool kNorm>
constexpr int kResident = kWidth == 1 ? 1
                          : kNorm     ? 8
                                      : 16;

// The shape of a row as kernels index it.
struct Heads {
  std::int32_t heads, kv_heads, head_dim;
  std::int32_t lanes;      // of a head, a power of two
  std::int32_t lane_bits;  // log2 of it

  __host__ __device__ std::int32_t half() const { return head_dim / 2; }
  __host__ __device__ std::int32_t qk_heads() const { return heads + kv_heads; }
  __host__ __device__ std::int64_t qkv_width() const { return std::int64_t{heads + 2 * kv_heads} * head_dim; }
};

__device__ float head_sum(float value, std::int32_t lanes) {
  for (std::int32_t offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

template <class T>
struct RopeArguments {
  T* qkv;
  const T *q_norm, *k_norm;
  const std::int32_t* positions;
  const float* table;
  T* raw;
  float* rstd;
  std::uint32_t items;  // tokens * qk_heads
  float eps;
  float direction;  // -1 undoes the rotation
};

template <class T, int kWidth, bool kNorm>
__global__ void __launch_bounds__(kThreads, (kResident<kWidth, kNorm>))
    rope_qk_norm(const RopeArguments<T> op, const Heads l) {
  constexpr int kSteps = kStepsOfLane<kWidth>;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x, item = thread >> l.lane_bits;
  const bool is_item = item < op.items;  // nobody leaves: a warp's shuffles want all its lanes
  const std::uint32_t token = is_item ? item / l.qk_heads() : 0;
  const auto head = static_cast<std::int32_t>(is_item ? item - token * l.qk_heads() : 0);
  const std::int32_t lane = thread & (l.lanes - 1), half = l.half();
  T* x = op.qkv + token * l.qkv_width() + head * l.head_dim;
  const auto column_of = [&](int step) { return (lane + step * l.lanes) * kWidth; };
  const auto inside = [&](int step) { return is_item && column_of(step) < half; };

  Vector<T, kWidth> lower[kSteps], upper[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    lower[step] = inside(step) ? load_once<kWidth>(x + column_of(step)) : Vector<T, kWidth>{};
    upper[step] = inside(step) ? load_once<kWidth>(x + half + column_of(step)) : Vector<T, kWidth>{};
  }
  const float* angles = op.table + static_cast<std::int64_t>(op.positions[token]) * l.head_dim;
  const T* norm = head < l.heads ? op.q_norm : op.k_norm;
  float rstd = 1;
  if constexpr (kNorm) {
    float squares = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        squares += lower[step][e] * lower[step][e] + upper[step][e] * upper[step][e];
      }
    }
    rstd = rsqrtf(head_sum(squares, l.lanes) / static_cast<float>(l.head_dim) + op.eps);
    if (op.rstd && is_item && lane == 0) op.rstd[item] = rstd;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (!inside(step)) continue;
    const std::int32_t j = column_of(step);
    const auto cosine = load<kWidth>(angles + j), sine = load<kWidth>(angles + half + j);
    float a[kWidth], b[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) a[e] = lower[step][e], b[e] = upper[step][e];
    if constexpr (kNorm) {
      if (op.raw) {
        T* raw = op.raw + item * std::int64_t{l.head_dim} + j;
        store_once(raw, lower[step]);
        store_once(raw + half, upper[step]);
      }
      const auto w_lower = load<kWidth>(norm + j), w_upper = load<kWidth>(norm + half + j);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) a[e] *= rstd * w_lower[e], b[e] *= rstd * w_upper[e];
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float c = cosine[e], s = op.direction * sine[e], kept = a[e];
      a[e] = kept * c - b[e] * s;
      b[e] = b[e] * c + kept * s;
    }
    store_once(x + j, Vector<T, kWidth>::from(a));
    store_once(x + half + j, Vector<T, kWidth>::from(b));
  }
}

template <class T>
struct NormGradArguments {
  T* dqkv;
  const T *q_norm, *k_norm;
  const std::int32_t* positions;
  const float* table;
  const T* raw;
  const float* rstd;
  float* partial;  // [kRowGroups, 2 head_dim]
  std::int64_t n;
};

// The gradient of one kind of head, q or k, over this block's tokens. `dweight_of_warp` is shared: [warps, head_dim].
// kLanes says at compile time how many lanes a head is, where they hold it exactly (a sixth less time); 0: `l` says.
template <class T, int kWidth, int kLanes>
__device__ void norm_grad(const NormGradArguments<T>& op, const Heads& l, RowRange tokens, bool is_query,
                          float* dweight_of_warp) {
  constexpr int kSteps = kStepsOfLane<kWidth>;
  const std::int32_t lanes = kLanes > 0 ? kLanes : l.lanes, half = kLanes > 0 ? kLanes * kWidth : l.half();
  const std::int32_t head_dim = 2 * half, lane = threadIdx.x & (lanes - 1), groups = kGradThreads / lanes;
  const std::int32_t heads = is_query ? l.heads : l.kv_heads, first_head = is_query ? 0 : l.heads;
  const auto column_of = [&](int step) { return (lane + step * lanes) * kWidth; };
  const auto is_column = [&](int step) { return kLanes > 0 || column_of(step) < half; };

  float w_lower[kSteps][kWidth], w_upper[kSteps][kWidth], dw_lower[kSteps][kWidth] = {}, dw_upper[kSteps][kWidth] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const T* weight = (is_query ? op.q_norm : op.k_norm) + (is_column(step) ? column_of(step) : 0);
    const auto lower = load<kWidth>(weight), upper = load<kWidth>(weight + half);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) w_lower[step][e] = lower[e], w_upper[step][e] = upper[e];
  }

  // Token and head of this group's item go along with it: a division for each would cost a tenth of the time.
  const auto items = static_cast<std::int32_t>(tokens.end - tokens.begin) * heads;
  const auto own = static_cast<std::int32_t>(threadIdx.x) / lanes;
  std::int32_t local = own / heads, head_of_kind = own % heads;
  const std::int32_t more_tokens = groups / heads, more_heads = groups % heads;
  const std::int64_t qkv_width = l.qkv_width(), qk_heads = l.qk_heads();
  for (std::int32_t first = 0; first < items; first += groups) {
    const bool is_item = first + own < items;
    const std::int64_t token = tokens.begin + (is_item ? local : 0);
    const std::int32_t head = first_head + (is_item ? head_of_kind : 0);
    T* dx = op.dqkv + token * qkv_width + head * head_dim;
    const T* raw = op.raw + (token * qk_heads + head) * head_dim;

    Vector<T, kWidth> lower[kSteps] = {}, upper[kSteps] = {}, x_lower[kSteps] = {}, x_upper[kSteps] = {};
    float rstd = 0;
    if (is_item) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (!is_column(step)) continue;
        const std::int32_t j = column_of(step);
        lower[step] = load_once<kWidth>(dx + j), upper[step] = load_once<kWidth>(dx + half + j);
        x_lower[step] = load_once<kWidth>(raw + j), x_upper[step] = load_once<kWidth>(raw + half + j);
      }
      rstd = op.rstd[token * qk_heads + head];
    }
    const float* angles = op.table + static_cast<std::int64_t>(op.positions[token]) * head_dim;
    float a[kSteps][kWidth], b[kSteps][kWidth], product = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int32_t j = is_column(step) ? column_of(step) : 0;
      const auto cosine = load<kWidth>(angles + j), sine = load<kWidth>(angles + half + j);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        a[step][e] = lower[step][e] * cosine[e] + upper[step][e] * sine[e];
        b[step][e] = upper[step][e] * cosine[e] - lower[step][e] * sine[e];
        const float a_x = a[step][e] * x_lower[step][e], b_x = b[step][e] * x_upper[step][e];
        product += a_x * w_lower[step][e];
        product += b_x * w_upper[step][e];
        dw_lower[step][e] += a_x * rstd;
        dw_upper[step][e] += b_x * rstd;
      }
    }
    const float slope = head_sum(product, lanes) * rstd * rstd * rstd / static_cast<float>(head_dim);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        a[step][e] = a[step][e] * (rstd * w_lower[step][e]) - x_lower[step][e] * slope;
        b[step][e] = b[step][e] * (rstd * w_upper[step][e]) - x_upper[step][e] * slope;
      }
      if (!is_item || !is_column(step)) continue;
      store_once(dx + column_of(step), Vector<T, kWidth>::from(a[step]));
      store_once(dx + half + column_of(step), Vector<T, kWidth>::from(b[step]));
    }
    local += more_tokens, head_of_kind += more_heads;
    if (head_of_kind >= heads) head_of_kind -= heads, ++local;
  }

  float* mine = dweight_of_warp + threadIdx.x / kWarp * head_dim;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      for (std::int32_t offset = lanes; offset < kWarp; offset *= 2) {  // lanes with the same columns
        dw_lower[step][e] += __shfl_xor_sync(~0u, dw_lower[step][e], offset);
        dw_upper[step][e] += __shfl_xor_sync(~0u, dw_upper[step][e], offset);
      }
      if (threadIdx.x % kWarp < lanes && is_column(step)) {
        mine[column_of(step) + e] = dw_lower[step][e];
        mine[half + column_of(step) + e] = dw_upper[step][e];
      }
    }
  }
  __syncthreads();
  float* partial = op.partial + blockIdx.x * std::int64_t{2 * head_dim} + (is_query ? 0 : head_dim);
  for (std::int32_t j = threadIdx.x; j < head_dim; j += kGradThreads) {
    float sum = 0;
    for (int warp = 0; warp < kGradThreads / kWarp; ++warp) sum += dweight_of_warp[warp * head_dim + j];
    partial[j] = sum;
  }
  __syncthreads();
}

template <class T, int kWidth, int kLanes>
__global__ void __launch_bounds__(kGradThreads, 2) rope_qk_norm_grad(const NormGradArguments<T> op, const Heads l) {
  extern __shared__ float dweight_of_warp[];
  const RowRange tokens = rows_of_group(op.n);
  let_next_kernel_start();
  for (int kind = 0; kind < 2; ++kind) norm_grad<T, kWidth, kLanes>(op, l, tokens, kind == 0, dweight_of_warp);
}

template <int kWidth>
Heads heads_of(const HeadLayout& layout) {
  const auto vectors = static_cast<std::uint32_t>(layout.head_dim / 2 / kWidth);
  const auto lanes = std::min<std::uint32_t>(kWarp, std::bit_ceil(vectors));
  REDLINE_CHECK(layout.head_dim % 2 == 0 && vectors <= lanes * kStepsOfLane<kWidth>, "no kernel for heads of {}",
                layout.head_dim);
  const auto i32 = [](auto x) { return static_cast<std::int32_t>(x); };
  return {i32(layout.heads), i32(layout.kv_heads), i32(layout.head_dim), i32(lanes), std::countr_zero(lanes)};
}

// Half a head is the longest run that vectors may not cross.
bool heads_in_vectors(const HeadLayout& layout, std::initializer_list<Tensor> tensors) {
  return in_vectors(layout.head_dim / 2, tensors);
}

template <class T, int kWidth>
void rotate(RopeArguments<T> arguments, std::int64_t tokens, const HeadLayout& layout, cudaStream_t stream) {
  const Heads heads = heads_of<kWidth>(layout);
  const std::int64_t items = tokens * layout.qk_heads();
  const unsigned blocks = blocks_for(items * heads.lanes, kThreads);
  REDLINE_CHECK(std::int64_t{blocks} * kThreads < std::int64_t{1} << 32, "{} tokens are too many", tokens);
  arguments.items = static_cast<std::uint32_t>(items);
  const auto kernel = arguments.q_norm ? rope_qk_norm<T, kWidth, true> : rope_qk_norm<T, kWidth, false>;
  kernel<<<blocks, kThreads, 0, stream>>>(arguments, heads);
  REDLINE_LAUNCHED();
}

}  // namespace

void run(const RopeQkNorm<Tensor>& op, const Launch& launch) {
  const bool vectors = heads_in_vectors(op.layout, {op.qkv, op.q_norm, op.k_norm, op.table, op.raw});
  for_type_and_width(op.qkv.dtype, vectors, [&]<class T, int kWidth>() {
    rotate<T, kWidth>({op.qkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(),
                       op.raw.as<T>(), op.rstd.f32(), 0, op.eps, 1.0f},
                      op.qkv.rows(), op.layout, launch.stream);
  });
}

void run(const RopeQkNormGrad<Tensor>& op, const Launch& launch) {
  const bool vectors = heads_in_vectors(op.layout, {op.dqkv, op.q_norm, op.k_norm, op.table, op.raw});
  for_type_and_width(op.dqkv.dtype, vectors, [&]<class T, int kWidth>() {
    if (!op.raw.present()) {
      return rotate<T, kWidth>(
          {op.dqkv.as<T>(), nullptr, nullptr, op.positions.i32(), op.table.f32(), nullptr, nullptr, 0, 0.0f, -1.0f},
          op.dqkv.rows(), op.layout, launch.stream);
    }
    const std::size_t shared = kGradThreads / kWarp * static_cast<std::size_t>(op.layout.head_dim) * sizeof(float);
    const Heads heads = heads_of<kWidth>(op.layout);
    auto* kernel = rope_qk_norm_grad<T, kWidth, 0>;
    if constexpr (kWidth > 1) {
      const bool exact = heads.half() == heads.lanes * kWidth;
      if (exact && heads.lanes == 4) kernel = rope_qk_norm_grad<T, kWidth, 4>;
      if (exact && heads.lanes == 8) kernel = rope_qk_norm_grad<T, kWidth, 8>;
    }
    kernel<<<kRowGroups, kGradThreads, shared, launch.stream>>>(
        {op.dqkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(), op.raw.as<T>(),
         op.rstd.f32(), op.partial.f32(), op.dqkv.rows()},
        heads);
    REDLINE_LAUNCHED();
    sum_row_groups(op.partial, op.layout.head_dim, op.dq_norm.f32(), op.dk_norm.f32(), op.accumulate, launch);
  });
}

}  // namespace redline::ops::cuda
