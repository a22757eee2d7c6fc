// Rotary embedding after an optional RMSNorm of each q and k head:  x[j] <- a c - b s,  x[j + half] <- b c + a s.
// Gradient: the opposite rotation; then, with a norm and h = dy * w:
//   dx = rstd * (h - x * rstd^2 * mean(h * x));  dw (+)= sum of dy * x * rstd
// A head is a power of two of lanes. A lane has kSteps vectors of the head's lower half and their partners of the
// upper. Forward, and backward without a norm, each such group of lanes has one head of one token, and as many threads
// as fit are resident: four heads a group, sharing the angles, reached 82% of the copy rate instead of 92. Backward
// with a norm, a block has one of kRowGroups groups of tokens, as many of them at once as fit. A lane keeps its head
// and its columns for all of them, and with them its part of dw, and reads ahead. Norms over a whole projection and
// gradients in eight bits have files of their own (rope.cuh).
#include <algorithm>
#include <bit>

#include "device/cuda/overlap.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rope.cuh"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 128;  // of a block, where heads are independent

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
  float plus = 0;   // added to every weight: 0 or 1
};

template <class T, int kWidth, bool kNorm>
__global__ void __launch_bounds__(kThreads, (kResident<kWidth, kNorm>))
    rope_qk_norm(const RopeArguments<T> op, const Heads l) {
  constexpr int kSteps = kStepsOfLane<kWidth>;
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x, item = thread >> l.lane_bits;
  const bool is_item = item < op.items;  // no thread returns early: shuffles want all lanes
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
      for (int e = 0; e < kWidth; ++e) a[e] *= rstd * (w_lower[e] + op.plus), b[e] *= rstd * (w_upper[e] + op.plus);
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const Rotated out = rotated(a[e], b[e], cosine[e], op.direction * sine[e]);
      a[e] = out.lower, b[e] = out.upper;
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
  float plus;  // added to every weight: 0 or 1
};

// The most threads of a block. Two blocks are resident, with 80 registers a thread: hence weights stay packed. With 256
// threads that read into registers, heads of 128 and 64 reached 81 and 83.5% of the copy rate instead of 83 and 86.
constexpr int kGradThreads = 384;
template <class T, int kWidth>
using GradReads = CopyAhead<T, kWidth, 4 * kStepsOfLane<kWidth>>;

// The work of a block at a time: `heads` of the q and k heads, of `tokens` tokens each. Where not all heads fit, one
// pass over the tokens follows another.
struct Pass {
  std::int32_t heads, tokens;
};
Pass pass_of(const Heads& l) {
  const std::int32_t groups = kGradThreads / l.lanes, passes = ceil_div(l.qk_heads(), groups);
  const std::int32_t heads = ceil_div(l.qk_heads(), passes);
  return {heads, groups / heads};
}

// The gradient of pass.heads heads from `first_head` over this block's tokens; the first pass writes `partial`, others
// add to it. `shared` has what is read ahead, then dw of each head of each of pass.tokens: [tokens, heads, head_dim].
// kLanes says at compile time how many lanes a head is, where they hold it exactly (a sixth less time); 0: `l` says.
template <class T, int kWidth, int kLanes>
__device__ void norm_grad(const NormGradArguments<T>& op, const Heads& l, const Pass& pass, std::int32_t first_head,
                          std::byte* shared) {
  constexpr int kSteps = kStepsOfLane<kWidth>;
  const std::int32_t lanes = kLanes > 0 ? kLanes : l.lanes, half = kLanes > 0 ? kLanes * kWidth : l.half();
  const std::int32_t head_dim = 2 * half, lane = threadIdx.x & (lanes - 1);
  const auto column_of = [&](int step) { return (lane + step * lanes) * kWidth; };
  const auto is_column = [&](int step) { return kLanes > 0 || column_of(step) < half; };

  const std::int32_t group = static_cast<std::int32_t>(threadIdx.x) / lanes, place = group / pass.heads;
  const std::int32_t heads_here = min(pass.heads, l.qk_heads() - first_head);
  // Threads without one come along: shuffles and barriers want them.
  const bool has_head = place < pass.tokens && group % pass.heads < heads_here;
  const std::int32_t head = has_head ? first_head + group % pass.heads : 0;

  // This thread's head in the token of the current round. All of it goes along with the rounds: worked out anew in
  // each, it made a sixth more instructions. Past the last token nothing is read or written.
  const RowRange tokens = rows_of_group(blockIdx.x, op.n, pass.tokens);
  const auto count = static_cast<std::int32_t>(tokens.end - tokens.begin);
  std::int32_t left = has_head ? count - place : 0;  // tokens from this one to the last; none: not above 0
  const std::int64_t item = (tokens.begin + place) * l.qk_heads() + head;
  T* dx = op.dqkv + (tokens.begin + place) * l.qkv_width() + head * head_dim;
  const T* raw = op.raw + item * head_dim;
  const float* rstd_from = op.rstd + item;
  const std::int32_t* position_from = op.positions + tokens.begin + place;
  const std::int32_t dx_step = pass.tokens * static_cast<std::int32_t>(l.qkv_width());
  const std::int32_t rstd_step = pass.tokens * l.qk_heads(), raw_step = rstd_step * head_dim;

  GradReads<T, kWidth> reads(shared);
  const auto ask = [&](int rounds) {  // after this one
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool present = rounds * pass.tokens < left && is_column(step);
      const T *dx_from = dx + rounds * dx_step + column_of(step), *raw_from = raw + rounds * raw_step + column_of(step);
      reads.ask(4 * step, dx_from, present);
      reads.ask(4 * step + 1, dx_from + half, present);
      reads.ask(4 * step + 2, raw_from, present);
      reads.ask(4 * step + 3, raw_from + half, present);
    }
  };
  ask(0);
  float next_rstd = left > 0 ? *rstd_from : 0.0f;
  std::int32_t next_position = left > 0 ? *position_from : 0;

  Vector<T, kWidth> w_lower[kSteps], w_upper[kSteps];
  float dw_lower[kSteps][kWidth] = {}, dw_upper[kSteps][kWidth] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const T* weight = (head < l.heads ? op.q_norm : op.k_norm) + (is_column(step) ? column_of(step) : 0);
    w_lower[step] = load<kWidth>(weight), w_upper[step] = load<kWidth>(weight + half);
  }

  for (std::int32_t first = 0; first < count; first += pass.tokens) {
    const float rstd = next_rstd;
    const float* angles = op.table + static_cast<std::int64_t>(next_position) * head_dim;
    rstd_from += rstd_step, position_from += pass.tokens;
    next_rstd = pass.tokens < left ? *rstd_from : 0.0f;
    next_position = pass.tokens < left ? *position_from : 0;
    reads.await();
    Vector<T, kWidth> lower[kSteps], upper[kSteps], x_lower[kSteps], x_upper[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      lower[step] = reads.take(4 * step), upper[step] = reads.take(4 * step + 1);
      x_lower[step] = reads.take(4 * step + 2), x_upper[step] = reads.take(4 * step + 3);
    }
    ask(1);

    float a[kSteps][kWidth], b[kSteps][kWidth], product = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::int32_t j = is_column(step) ? column_of(step) : 0;
      const auto cosine = load<kWidth>(angles + j), sine = load<kWidth>(angles + half + j);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const Rotated dy = rotated(lower[step][e], upper[step][e], cosine[e], -sine[e]);
        a[step][e] = dy.lower, b[step][e] = dy.upper;
        const float a_x = a[step][e] * x_lower[step][e], b_x = b[step][e] * x_upper[step][e];
        product = fmaf(a_x, w_lower[step][e] + op.plus, product);
        product = fmaf(b_x, w_upper[step][e] + op.plus, product);
        dw_lower[step][e] += a_x * rstd;
        dw_upper[step][e] += b_x * rstd;
      }
    }
    const float slope = norm_slope(head_sum(product, lanes), rstd, head_dim);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        a[step][e] = norm_dx(a[step][e], x_lower[step].again(e), w_lower[step].again(e) + op.plus, rstd, slope);
        b[step][e] = norm_dx(b[step][e], x_upper[step].again(e), w_upper[step].again(e) + op.plus, rstd, slope);
      }
      if (left <= 0 || !is_column(step)) continue;
      store_once(dx + column_of(step), Vector<T, kWidth>::from(a[step]));
      store_once(dx + half + column_of(step), Vector<T, kWidth>::from(b[step]));
    }
    dx += dx_step, raw += raw_step, left -= pass.tokens;
  }

  await_copies();   // of rounds past the end: they would land on what follows
  __syncthreads();  // of all threads
  auto* const dweight = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (!has_head || !is_column(step)) continue;
    store(dweight + group * head_dim + column_of(step), dw_lower[step]);
    store(dweight + group * head_dim + half + column_of(step), dw_upper[step]);
  }
  __syncthreads();
  const std::int32_t q_heads = max(0, min(heads_here, l.heads - first_head));
  float* partial = op.partial + blockIdx.x * std::int64_t{2 * head_dim};
  for (std::int32_t j = threadIdx.x; j < 2 * head_dim; j += blockDim.x) {
    const bool is_query = j < head_dim;
    const float* from = dweight + (is_query ? j : j - head_dim);
    float sum = first_head == 0 ? 0.0f : partial[j];
    for (std::int32_t t = 0; t < pass.tokens; ++t) {
#pragma unroll 8
      for (std::int32_t h = is_query ? 0 : q_heads; h < (is_query ? q_heads : heads_here); ++h)
        sum += from[(t * pass.heads + h) * head_dim];
    }
    partial[j] = sum;
  }
  __syncthreads();
}

template <class T, int kWidth, int kLanes>
__global__ void __launch_bounds__(kGradThreads, kWidth == 1 ? 1 : 2)
    rope_qk_norm_grad(const NormGradArguments<T> op, const Heads l, const Pass pass) {
  extern __shared__ __align__(16) std::byte shared[];
  let_next_kernel_start();
  await_kernel_before();
  for (std::int32_t head = 0; head < l.qk_heads(); head += pass.heads)
    norm_grad<T, kWidth, kLanes>(op, l, pass, head, shared);
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

// In place, by heads.
void update_gradient(const RopeQkNormGrad<Tensor>& op, const Launch& launch) {
  const bool vectors = heads_in_vectors(op.layout, {op.dqkv, op.q_norm, op.k_norm, op.table, op.raw});
  for_type_and_width(op.dqkv.dtype, vectors, [&]<class T, int kWidth>() {
    if (!op.raw.present()) {
      return rotate<T, kWidth>(
          {op.dqkv.as<T>(), nullptr, nullptr, op.positions.i32(), op.table.f32(), nullptr, nullptr, 0, 0.0f, -1.0f},
          op.dqkv.rows(), op.layout, launch.stream);
    }
    const Heads heads = heads_of<kWidth>(op.layout);
    const Pass pass = pass_of(heads);
    auto* kernel = rope_qk_norm_grad<T, kWidth, 0>;
    if constexpr (kWidth > 1) {
      const bool exact = heads.half() == heads.lanes * kWidth;
      if (exact && heads.lanes == 4) kernel = rope_qk_norm_grad<T, kWidth, 4>;
      if (exact && heads.lanes == 8) kernel = rope_qk_norm_grad<T, kWidth, 8>;
    }
    const std::int64_t groups = std::int64_t{pass.tokens} * pass.heads, threads = whole_warps(groups * heads.lanes);
    const std::size_t shared = std::max(GradReads<T, kWidth>::bytes(threads),
                                        static_cast<std::size_t>(groups * op.layout.head_dim) * sizeof(float));
    allow_shared(kernel, shared);
    launch_early(launch, kernel, kRowGroups, static_cast<unsigned>(threads), shared,
                 {op.dqkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(),
                  op.raw.as<T>(), op.rstd.f32(), op.partial.f32(), op.dqkv.rows(), op.one_plus ? 1.0f : 0.0f},
                 heads, pass);
    sum_row_groups(op.partial, op.layout.head_dim, op.dq_norm.f32(), op.dk_norm.f32(), op.accumulate, launch);
  });
}

}  // namespace

void run(const RopeQkNorm<Tensor>& op, const Launch& launch) {
  if (op.over == NormOver::projection) return rope_projection_norm(op, launch);
  const bool vectors = heads_in_vectors(op.layout, {op.qkv, op.q_norm, op.k_norm, op.table, op.raw});
  for_type_and_width(op.qkv.dtype, vectors, [&]<class T, int kWidth>() {
    rotate<T, kWidth>({op.qkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(),
                       op.raw.as<T>(), op.rstd.f32(), 0, op.eps, 1.0f, op.one_plus ? 1.0f : 0.0f},
                      op.qkv.rows(), op.layout, launch.stream);
  });
}

void run(const RopeQkNormGrad<Tensor>& op, const Launch& launch) {
  if (op.fp8.present() && !op.updates_dqkv()) return rope_grad_cast(op, launch);
  if (op.over == NormOver::projection)
    rope_projection_norm_grad(op, launch);
  else
    update_gradient(op, launch);
  if (op.fp8.present()) run(Quantize<Tensor>{op.dqkv, op.fp8}, launch);
}

}  // namespace redline::ops::cuda
