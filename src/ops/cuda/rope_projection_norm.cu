// RMSNorm of all of q and of all of k, then the rotation:  x[j] <- a c - b s,  x[j + half] <- b c + a s.
// Gradient: the opposite rotation, then, h = dy * w:  dx = rstd * (h - x * rstd^2 * mean(h * x));  dw (+)= sum of dy *
// x * rstd. A pair is a vector of the lower half of a head and its partner of the upper. A token's q and k heads are
// blockDim.x threads with up to kPairs pairs each, held in registers between the sums and the rotation. Backward, a
// block is one of kRowGroups groups of tokens; a thread keeps its pairs for all of them, and with them its part of dw,
// and reads one round ahead.
#include <algorithm>

#include "device/cuda/overlap.cuh"
#include "ops/cuda/rope.cuh"
#include "ops/cuda/row_groups.cuh"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

// The shape of a row as kernels index it.
struct Row {
  std::int32_t heads, qk_heads, head_dim, qkv_width;

  __host__ __device__ std::int32_t half() const { return head_dim / 2; }
  __host__ __device__ std::int32_t q_width() const { return heads * head_dim; }
  __host__ __device__ std::int32_t qk_width() const { return qk_heads * head_dim; }
};

// One pair of a row: where its lower vector stands, in the row and in its head. Its partner is half a head further on.
struct Pair {
  std::int32_t at, in_head;
  bool inside, is_query;
};
template <int kWidth>
__device__ Pair pair_of(const Row& l, std::int32_t index) {
  const std::int32_t of_head = l.half() / kWidth, head = index / of_head, in_head = (index - head * of_head) * kWidth;
  return {head * l.head_dim + in_head, in_head, head < l.qk_heads, head < l.heads};
}

// The sums of q and of k over the threads of a row. `parts` is shared memory that no thread still reads.
struct QkSums {
  float q, k;
};
__device__ QkSums row_sums(QkSums value, float (&parts)[2][kMaxWarps]) {
  value = {warp_sum(value.q), warp_sum(value.k)};
  const unsigned warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  const unsigned row = threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) {
    parts[0][row + threadIdx.x / kWarp] = value.q;
    parts[1][row + threadIdx.x / kWarp] = value.k;
  }
  __syncthreads();
  QkSums sum{};
  for (unsigned w = 0; w < warps; ++w) sum.q += parts[0][row + w], sum.k += parts[1][row + w];
  return sum;
}

template <class T>
struct Arguments {
  T* qkv;
  const T *q_norm, *k_norm;
  const std::int32_t* positions;
  const float* table;
  T* raw;
  float* rstd;
  std::int64_t n;
  float eps;
};

constexpr int kRowThreads = 512;
template <int kWidth>
constexpr int kPairsOfThread = kWidth == 1 ? 16 : 4;

template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads) projection_norm(const Arguments<T> op, const Row l) {
  constexpr int kPairs = kPairsOfThread<kWidth>;
  __shared__ float parts[2][kMaxWarps];
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool is_token = token < op.n;  // no thread returns early: the sums want all
  T* x = op.qkv + (is_token ? token : 0) * l.qkv_width;
  const std::int32_t half = l.half();

  Pair pair[kPairs];
  Vector<T, kWidth> lower[kPairs], upper[kPairs];
  QkSums squares{};
#pragma unroll
  for (int v = 0; v < kPairs; ++v) {
    pair[v] = pair_of<kWidth>(l, static_cast<std::int32_t>(threadIdx.x + v * blockDim.x));
    pair[v].inside = pair[v].inside && is_token;
    lower[v] = pair[v].inside ? load_once<kWidth>(x + pair[v].at) : Vector<T, kWidth>{};
    upper[v] = pair[v].inside ? load_once<kWidth>(x + pair[v].at + half) : Vector<T, kWidth>{};
  }
#pragma unroll
  for (int v = 0; v < kPairs; ++v) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += lower[v][e] * lower[v][e] + upper[v][e] * upper[v][e];
    (pair[v].is_query ? squares.q : squares.k) += sum;
  }
  squares = row_sums(squares, parts);
  const float q_rstd = rsqrtf(squares.q / static_cast<float>(l.q_width()) + op.eps);
  const float k_rstd = rsqrtf(squares.k / static_cast<float>(l.qk_width() - l.q_width()) + op.eps);
  if (op.rstd && is_token && threadIdx.x == 0) op.rstd[2 * token] = q_rstd, op.rstd[2 * token + 1] = k_rstd;
  const float* angles = op.table + static_cast<std::int64_t>(op.positions[is_token ? token : 0]) * l.head_dim;
#pragma unroll
  for (int v = 0; v < kPairs; ++v) {
    if (!pair[v].inside) continue;
    if (op.raw) {
      T* raw = op.raw + token * l.qk_width() + pair[v].at;
      store_once(raw, lower[v]);
      store_once(raw + half, upper[v]);
    }
    const T* weight = pair[v].is_query ? op.q_norm + pair[v].at : op.k_norm + (pair[v].at - l.q_width());
    const auto w_lower = load<kWidth>(weight), w_upper = load<kWidth>(weight + half);
    const auto cosine = load<kWidth>(angles + pair[v].in_head), sine = load<kWidth>(angles + half + pair[v].in_head);
    const float rstd = pair[v].is_query ? q_rstd : k_rstd;
    float a[kWidth], b[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float low = lower[v][e] * (rstd * w_lower[e]), up = upper[v][e] * (rstd * w_upper[e]);
      a[e] = low * cosine[e] - up * sine[e];
      b[e] = up * cosine[e] + low * sine[e];
    }
    store_once(x + pair[v].at, Vector<T, kWidth>::from(a));
    store_once(x + pair[v].at + half, Vector<T, kWidth>::from(b));
  }
}

template <class T>
struct GradArguments {
  T* dqkv;
  const T *q_norm, *k_norm;
  const std::int32_t* positions;
  const float* table;
  const T* raw;
  const float* rstd;
  float* partial;  // [kRowGroups, qk_width]
  std::int64_t n;
};

// A thread has one pair where a token's fit a block, else as many as it takes.
constexpr int kGradThreads = 512;
template <class T, int kWidth, int kPairs>
using GradReads = CopyAhead<T, kWidth, 4 * kPairs>;

template <class T, int kWidth, int kPairs>
__global__ void __launch_bounds__(kGradThreads) projection_norm_grad(const GradArguments<T> op, const Row l) {
  __shared__ float parts[2][2][kMaxWarps];
  extern __shared__ __align__(16) std::byte shared[];  // what is read ahead, then dw of each threadIdx.y: [y, qk_width]
  const std::int32_t half = l.half(), width = l.qk_width(), step = static_cast<std::int32_t>(blockDim.y);
  const RowRange tokens = rows_of_group(blockIdx.x, op.n, step);
  const auto count = static_cast<std::int32_t>(tokens.end - tokens.begin);
  T* dx_of_group = op.dqkv + tokens.begin * l.qkv_width;
  const T* raw_of_group = op.raw + tokens.begin * width;
  const float* rstd_of_group = op.rstd + 2 * tokens.begin;
  const std::int32_t* positions = op.positions + tokens.begin;

  Pair pair[kPairs];
#pragma unroll
  for (int v = 0; v < kPairs; ++v)
    pair[v] = pair_of<kWidth>(l, static_cast<std::int32_t>(threadIdx.x + v * blockDim.x));

  let_next_kernel_start();
  await_kernel_before();
  GradReads<T, kWidth, kPairs> reads(shared);
  const auto ask = [&](std::int32_t token) {
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      const bool inside = token < count && pair[v].inside;
      const T* dx = dx_of_group + (inside ? std::int64_t{token} * l.qkv_width + pair[v].at : 0);
      const T* raw = raw_of_group + (inside ? std::int64_t{token} * width + pair[v].at : 0);
      reads.ask(4 * v, dx, inside);
      reads.ask(4 * v + 1, dx + half, inside);
      reads.ask(4 * v + 2, raw, inside);
      reads.ask(4 * v + 3, raw + half, inside);
    }
  };
  ask(static_cast<std::int32_t>(threadIdx.y));

  float dw_lower[kPairs][kWidth] = {}, dw_upper[kPairs][kWidth] = {};
  int buffer = 0;  // sums of one round are still read when the next are written
  for (std::int32_t first = 0; first < count; first += step, buffer ^= 1) {
    const std::int32_t token = first + static_cast<std::int32_t>(threadIdx.y);
    const bool is_token = token < count;
    const float q_rstd = is_token ? rstd_of_group[2 * token] : 0.0f;
    const float k_rstd = is_token ? rstd_of_group[2 * token + 1] : 0.0f;
    const float* angles = op.table + static_cast<std::int64_t>(is_token ? positions[token] : 0) * l.head_dim;
    reads.await();
    Vector<T, kWidth> x_lower[kPairs], x_upper[kPairs], w_lower[kPairs], w_upper[kPairs];
    float a[kPairs][kWidth], b[kPairs][kWidth];
    QkSums product{};
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      const Vector<T, kWidth> lower = reads.take(4 * v), upper = reads.take(4 * v + 1);
      x_lower[v] = reads.take(4 * v + 2), x_upper[v] = reads.take(4 * v + 3);
      const std::int32_t at = pair[v].inside ? pair[v].at : 0, in_head = pair[v].inside ? pair[v].in_head : 0;
      const T* weight = at < l.q_width() ? op.q_norm + at : op.k_norm + (at - l.q_width());
      w_lower[v] = load<kWidth>(weight), w_upper[v] = load<kWidth>(weight + half);
      const auto cosine = load<kWidth>(angles + in_head), sine = load<kWidth>(angles + half + in_head);
      const float rstd = pair[v].is_query ? q_rstd : k_rstd;
      float sum = 0;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        a[v][e] = lower[e] * cosine[e] + upper[e] * sine[e];
        b[v][e] = upper[e] * cosine[e] - lower[e] * sine[e];
        const float a_x = a[v][e] * x_lower[v][e], b_x = b[v][e] * x_upper[v][e];
        sum += a_x * w_lower[v][e];
        sum += b_x * w_upper[v][e];
        dw_lower[v][e] += a_x * rstd;
        dw_upper[v][e] += b_x * rstd;
      }
      (pair[v].is_query ? product.q : product.k) += sum;
    }
    ask(token + step);
    product = row_sums(product, parts[buffer]);
    const float q_slope = product.q * q_rstd * q_rstd * q_rstd / static_cast<float>(l.q_width());
    const float k_slope = product.k * k_rstd * k_rstd * k_rstd / static_cast<float>(width - l.q_width());
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      const float rstd = pair[v].is_query ? q_rstd : k_rstd, slope = pair[v].is_query ? q_slope : k_slope;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        a[v][e] = a[v][e] * (rstd * w_lower[v].again(e)) - x_lower[v].again(e) * slope;
        b[v][e] = b[v][e] * (rstd * w_upper[v].again(e)) - x_upper[v].again(e) * slope;
      }
      if (!is_token || !pair[v].inside) continue;
      T* dx = dx_of_group + std::int64_t{token} * l.qkv_width + pair[v].at;
      store_once(dx, Vector<T, kWidth>::from(a[v]));
      store_once(dx + half, Vector<T, kWidth>::from(b[v]));
    }
  }

  sum_over_block_rows(shared, width, op.partial, [&](float* to) {
#pragma unroll
    for (int v = 0; v < kPairs; ++v) {
      if (!pair[v].inside) continue;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        to[pair[v].at + e] = dw_lower[v][e];
        to[pair[v].at + half + e] = dw_upper[v][e];
      }
    }
  });
}

Row row_of(const HeadLayout& l) {
  const auto i32 = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  return {i32(l.heads), i32(l.qk_heads()), i32(l.head_dim), i32(l.qkv_width())};
}

// Half a head is the longest run that vectors may not cross.
template <class F>
void for_pairs(const HeadLayout& l, DType dtype, std::initializer_list<Tensor> tensors, const F& f) {
  REDLINE_CHECK(l.head_dim % 2 == 0, "no kernel for heads of {}", l.head_dim);
  for_type_and_width(dtype, in_vectors(l.head_dim / 2, tensors), f);
}

// A block for the pairs of `rows` tokens at once, so many pairs a thread.
dim3 block_for(std::int64_t pairs, int pairs_of_thread, std::int64_t most, std::int64_t wanted) {
  const std::int64_t threads = whole_warps(ceil_div<std::int64_t>(pairs, pairs_of_thread));
  REDLINE_CHECK(threads <= most, "{} vectors of queries and keys are too many for a norm over all of them", 2 * pairs);
  return dim3(static_cast<unsigned>(threads), static_cast<unsigned>(std::max<std::int64_t>(1, wanted / threads)));
}

}  // namespace

void rope_projection_norm(const RopeQkNorm<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(!op.one_plus, "no norm over all of q and k has weights 1 + w");
  const std::int64_t n = op.qkv.rows();
  const Row row = row_of(op.layout);
  for_pairs(op.layout, op.qkv.dtype, {op.qkv, op.q_norm, op.k_norm, op.table, op.raw}, [&]<class T, int kWidth>() {
    const dim3 block = block_for(row.qk_width() / 2 / kWidth, kPairsOfThread<kWidth>, kRowThreads, 128);
    projection_norm<T, kWidth><<<blocks_for(n, block.y), block, 0, launch.stream>>>(
        {op.qkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(), op.raw.as<T>(),
         op.rstd.f32(), n, op.eps},
        row);
  });
  REDLINE_LAUNCHED();
}

void rope_projection_norm_grad(const RopeQkNormGrad<Tensor>& op, const Launch& launch) {
  REDLINE_CHECK(!op.one_plus, "no norm over all of q and k has weights 1 + w");
  const std::int64_t n = op.dqkv.rows();
  const Row row = row_of(op.layout);
  for_pairs(op.layout, op.dqkv.dtype, {op.dqkv, op.q_norm, op.k_norm, op.table, op.raw}, [&]<class T, int kWidth>() {
    const auto launch_with = [&]<int kPairs>() {
      const dim3 block = block_for(row.qk_width() / 2 / kWidth, kPairs, kGradThreads, 256);
      const std::size_t shared = std::max(GradReads<T, kWidth, kPairs>::bytes(std::int64_t{block.x} * block.y),
                                          static_cast<std::size_t>(block.y) * row.qk_width() * sizeof(float));
      const auto kernel = projection_norm_grad<T, kWidth, kPairs>;
      allow_shared(kernel, shared);
      launch_early(launch, kernel, kRowGroups, block, shared,
                   {op.dqkv.as<T>(), op.q_norm.as<T>(), op.k_norm.as<T>(), op.positions.i32(), op.table.f32(),
                    op.raw.as<T>(), op.rstd.f32(), op.partial.f32(), n},
                   row);
    };
    if (row.qk_width() / 2 / kWidth <= kGradThreads)
      launch_with.template operator()<1>();
    else
      launch_with.template operator()<kPairsOfThread<kWidth>>();
  });
  sum_row_groups(op.partial, row.q_width(), op.dq_norm.f32(), op.dk_norm.f32(), op.accumulate, launch);
}

}  // namespace redline::ops::cuda
