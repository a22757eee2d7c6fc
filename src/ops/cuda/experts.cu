// Mixtures of experts on the card (ops/experts.h). Products of the router go through cuBLASLt with sums in fp32; all
// else is here. A warp has a token, or a row of the experts' inputs; sums go in a fixed order, nothing is added by
// atomics, and no kernel asks the host for anything: offsets and places lie in device memory.
//   The sort is a counting sort in three kernels over pieces of kSortPiece choices: counts of each piece by expert;
//   their sums over the pieces before, and the offsets; then every choice goes to the place that they give it. Within a
//   piece warps follow each other, and within 32 choices a lane counts the lower ones that chose as it did: the order
//   is that of tokens.
#include "device/cuda/vectors.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/gemm.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kTokensAtOnce = 8;  // of a block, a warp each
constexpr unsigned kAll = ~0u;

__device__ int lane() { return static_cast<int>(threadIdx.x); }
__device__ std::int64_t own_row() { return static_cast<std::int64_t>(blockIdx.x) * kTokensAtOnce + threadIdx.y; }
const dim3 kWarpsOfTokens(kWarp, kTokensAtOnce);

// Calls f.operator()<kPerLane>() with room for all experts in the lanes of a warp.
template <class F>
void for_experts(std::int64_t experts, const F& f) {
  REDLINE_CHECK(experts <= 16 * kWarp, "{} experts; kernels of a card take up to {}", experts, 16 * kWarp);
  if (experts <= kWarp) return f.template operator()<1>();
  if (experts <= 2 * kWarp) return f.template operator()<2>();
  if (experts <= 4 * kWarp) return f.template operator()<4>();
  if (experts <= 8 * kWarp) return f.template operator()<8>();
  f.template operator()<16>();
}

// Logits become probabilities, in place. Lane l has experts l, l + 32, and so on.
template <int kPerLane>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    choose_experts(float* probs, const std::int32_t* documents_end, std::int64_t n, int experts, int k, bool normalise,
                   float* lse, std::int32_t* choices, float* weights) {
  const std::int64_t row = own_row();
  if (row >= n) return;
  probs += row * experts, choices += row * k, weights += row * k;
  if (documents_end && row >= *documents_end) {
    for (int e = lane(); e < experts; e += kWarp) probs[e] = 0;
    for (int j = lane(); j < k; j += kWarp) choices[j] = kNowhere, weights[j] = 0;
    if (lane() == 0) lse[row] = 0;
    return;
  }
  float p[kPerLane];
  float top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane();
    p[i] = e < experts ? probs[e] : -INFINITY;
    top = fmaxf(top, p[i]);
  }
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    p[i] = i * kWarp + lane() < experts ? expf(p[i] - top) : 0.0f;
    sum += p[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane();
    p[i] /= sum;
    if (e < experts) probs[e] = p[i];
  }
  if (lane() == 0) lse[row] = top + logf(sum);

  // One after the other: the largest that is left, of equal ones the lower. A NaN is never larger.
  unsigned taken = 0;  // a bit for each of this lane's
  float chosen = 0;
  for (int j = 0; j < k; ++j) {
    float best = -1;
    int expert = INT_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * kWarp + lane();
      if (e >= experts || taken >> i & 1 || (expert != INT_MAX && !(p[i] > best))) continue;
      best = p[i], expert = e;
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAll, best, offset);
      const int others = __shfl_xor_sync(kAll, expert, offset);
      if (other > best || (!(best > other) && others < expert)) best = other, expert = others;
    }
    if (expert % kWarp == lane()) taken |= 1u << expert / kWarp;
    chosen += best;
    if (lane() == 0) choices[j] = expert, weights[j] = best;
  }
  if (!normalise) return;
  __syncwarp();  // what lane 0 wrote
  for (int j = lane(); j < k; j += kWarp) weights[j] /= chosen;
}

// What the gradient of logits is written as. Beside bf16 operands it is two numbers of bf16, the rounded one and the
// rest of it, in rows [E | E]: together they have 16 bits of its significand.
__device__ void store_gradient(float* row, int, int e, float x) { row[e] = x; }
__device__ void store_gradient(bf16* row, int experts, int e, float x) {
  const bf16 rounded = __float2bfloat16_rn(x);
  row[e] = rounded;
  row[experts + e] = __float2bfloat16_rn(x - __bfloat162float(rounded));
}

template <class T, int kPerLane>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    logits_grad(const float* probs, const float* lse, const std::int32_t* choices, const float* weights,
                const float* dweights, const float* balance, std::int64_t n, int experts, int k, bool normalise,
                T* dlogits) {
  constexpr int kParts = sizeof(T) == 2 ? 2 : 1;
  const std::int64_t row = own_row();
  if (row >= n) return;
  probs += row * experts, choices += row * k, weights += row * k, dweights += row * k;
  dlogits += row * experts * kParts;
  if (choices[0] == kNowhere) {
    for (int e = lane(); e < experts; e += kWarp) store_gradient(dlogits, experts, e, 0.0f);
    return;
  }
  float chosen = 1, shared = 0;
  if (normalise) {
    chosen = 0;
    for (int j = 0; j < k; ++j) {
      chosen += probs[choices[j]];
      shared += dweights[j] * weights[j];
    }
  }
  float p[kPerLane], dp[kPerLane];
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane();
    p[i] = e < experts ? probs[e] : 0.0f;
    dp[i] = balance && e < experts ? balance[e] : 0.0f;
  }
  for (int j = 0; j < k; ++j) {
    const int expert = choices[j];
    const float g = (dweights[j] - shared) / chosen;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (i * kWarp + lane() == expert) dp[i] += g;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean += p[i] * dp[i];
  mean = warp_sum(mean);
  const float of_lse = balance ? balance[experts] * lse[row] : 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * kWarp + lane();
    if (e < experts) store_gradient(dlogits, experts, e, p[i] * (dp[i] - mean + of_lse));
  }
}

constexpr int kSortWarps = 8, kRounds = kSortPiece / (kSortWarps * kWarp);
static_assert(kRounds * kSortWarps * kWarp == kSortPiece);

// Calls visit(choice, expert, lanes that chose the same) for this warp's choices of a piece, 32 at a time and in order;
// an expert is kNowhere past the end. All lanes take part.
template <class Visit>
__device__ void visit_choices(const std::int32_t* choices, std::int64_t all, const Visit& visit) {
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kSortPiece + threadIdx.y * kRounds * kWarp + threadIdx.x;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t i = first + round * kWarp;
    const std::int32_t expert = i < all ? choices[i] : kNowhere;
    visit(i, expert, __match_any_sync(kAll, expert));
    __syncwarp();
  }
}
// How many of its choices each warp of the block gives each expert: [kSortWarps, E].
__device__ void count_by_warp(std::int32_t* counts, const std::int32_t* choices, std::int64_t all, int experts) {
  for (int i = threadIdx.y * kWarp + threadIdx.x; i < kSortWarps * experts; i += kSortWarps * kWarp) counts[i] = 0;
  __syncthreads();
  std::int32_t* const own = counts + threadIdx.y * experts;
  visit_choices(choices, all, [&](std::int64_t, std::int32_t expert, unsigned same) {
    if (expert != kNowhere && lane() == __ffs(same) - 1) own[expert] += __popc(same);
  });
  __syncthreads();
}

// by_piece [E, pieces]: the choices of a piece by expert. Places that no choice will take become kNowhere.
__global__ void __launch_bounds__(kSortWarps* kWarp)
    count_choices(const std::int32_t* choices, std::int64_t all, int experts, std::int32_t* by_piece,
                  std::int32_t* rows, std::int64_t m) {
  extern __shared__ std::int32_t counts[];
  count_by_warp(counts, choices, all, experts);
  const int thread = threadIdx.y * kWarp + threadIdx.x;
  for (int e = thread; e < experts; e += kSortWarps * kWarp) {
    std::int32_t sum = 0;
    for (int warp = 0; warp < kSortWarps; ++warp) sum += counts[warp * experts + e];
    by_piece[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x] = sum;
  }
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSortWarps * kWarp;
  for (std::int64_t s = static_cast<std::int64_t>(blockIdx.x) * kSortWarps * kWarp + thread; s < m; s += step)
    rows[s] = kNowhere;
}

// The sum of lower lanes' values, and over all lanes.
__device__ std::int32_t sum_before(std::int32_t value, std::int32_t& all) {
  std::int32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const std::int32_t lower = __shfl_up_sync(kAll, sum, offset);
    if (lane() >= offset) sum += lower;
  }
  all = __shfl_sync(kAll, sum, kWarp - 1);
  return sum - value;
}

// One block, a warp an expert at a time: by_piece becomes the choices of the expert in the pieces before.
__global__ void __launch_bounds__(kWarp* kMaxWarps)
    add_up_pieces(std::int32_t* by_piece, int pieces, int experts, int align, std::int32_t* counts,
                  std::int32_t* offsets) {
  for (int e = static_cast<int>(threadIdx.y); e < experts; e += kMaxWarps) {
    std::int32_t* const own = by_piece + static_cast<std::int64_t>(e) * pieces;
    std::int32_t before = 0;
    for (int first = 0; first < pieces; first += kWarp) {
      const int piece = first + lane();
      std::int32_t all;
      const std::int32_t sum = sum_before(piece < pieces ? own[piece] : 0, all);
      if (piece < pieces) own[piece] = before + sum;
      before += all;
    }
    if (lane() == 0) counts[e] = before;
  }
  __syncthreads();
  if (threadIdx.y != 0) return;
  std::int32_t before = 0;
  for (int first = 0; first < experts; first += kWarp) {
    const int e = first + lane();
    std::int32_t all;
    const std::int32_t sum = sum_before(e < experts ? (counts[e] + align - 1) / align * align : 0, all);
    if (e < experts) offsets[e] = before + sum;
    before += all;
  }
  if (lane() == 0) offsets[experts] = before;
}

__global__ void __launch_bounds__(kSortWarps* kWarp)
    place_choices(const std::int32_t* choices, std::int64_t all, int experts, const std::int32_t* by_piece,
                  const std::int32_t* offsets, std::int32_t* rows, std::int32_t* places) {
  extern __shared__ std::int32_t next[];  // [kSortWarps, E]: where a warp's next choice goes
  count_by_warp(next, choices, all, experts);
  for (int e = threadIdx.y * kWarp + threadIdx.x; e < experts; e += kSortWarps * kWarp) {
    std::int32_t place = offsets[e] + by_piece[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x];
    for (int warp = 0; warp < kSortWarps; ++warp) {
      const std::int32_t count = next[warp * experts + e];
      next[warp * experts + e] = place;
      place += count;
    }
  }
  __syncthreads();
  std::int32_t* const own = next + threadIdx.y * experts;
  visit_choices(choices, all, [&](std::int64_t i, std::int32_t expert, unsigned same) {
    std::int32_t place = kNowhere;
    if (expert != kNowhere) {
      place = own[expert] + __popc(same & ((1u << lane()) - 1));
      rows[place] = static_cast<std::int32_t>(i);
    }
    if (i < all) places[i] = place;
    __syncwarp();  // all have read where they go
    if (expert != kNowhere && lane() == __ffs(same) - 1) own[expert] += __popc(same);
  });
}

// Rows of y that belong to no token become zeros. A warp looks at 32 rows.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    clear_rows_of_nobody(const std::int32_t* rows, std::int64_t m, T* y, int d) {
  const std::int64_t first = own_row() * kWarp, row = first + lane();
  unsigned left = __ballot_sync(kAll, row < m && rows[row] == kNowhere);
  const float zeros[kWidth] = {};
  for (; left != 0; left &= left - 1) {
    T* const to = y + (first + __ffs(left) - 1) * d;
    for (int c = lane() * kWidth; c < d; c += kWarp * kWidth) store<kWidth>(to + c, zeros);
  }
}

// A token's row of x goes to all its places: x is read once.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    gather_rows(const T* x, const std::int32_t* places, std::int64_t n, int k, int d, T* y) {
  const std::int64_t row = own_row();
  if (row >= n) return;
  x += row * d, places += row * k;
#pragma unroll 4
  for (int c = lane() * kWidth; c < d; c += kWarp * kWidth) {
    const auto v = load_once<kWidth>(x + c);
    for (int j = 0; j < k; ++j) {
      const std::int32_t place = places[j];
      if (place != kNowhere) store<kWidth>(y + static_cast<std::int64_t>(place) * d + c, v);
    }
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    combine_rows(const T* y, const float* weights, const std::int32_t* places, std::int64_t n, int k, int d,
                 bool accumulate, T* out) {
  const std::int64_t row = own_row();
  if (row >= n) return;
  out += row * d, places += row * k;
  if (weights) weights += row * k;
  for (int c = lane() * kWidth; c < d; c += kWarp * kWidth) {
    float sum[kWidth] = {};
    if (accumulate) {
      const auto before = load<kWidth>(out + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] = before[i];
    }
#pragma unroll 8
    for (int j = 0; j < k; ++j) {
      const std::int32_t place = places[j];
      if (place == kNowhere) continue;
      const float weight = weights ? weights[j] : 1.0f;
      const auto v = load_once<kWidth>(y + static_cast<std::int64_t>(place) * d + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] = fmaf(weight, v[i], sum[i]);
    }
    store<kWidth>(out + c, sum);
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    combine_grad(const T* dout, const T* y, const float* weights, const std::int32_t* places, std::int64_t n, int k,
                 int d, T* dy, float* dweights) {
  const std::int64_t row = own_row();
  if (row >= n) return;
  dout += row * d;
  for (int j = 0; j < k; ++j) {
    const std::int32_t place = places[row * k + j];
    float dot = 0;
    if (place != kNowhere) {
      const float weight = weights[row * k + j];
      const T* const from = y + static_cast<std::int64_t>(place) * d;
      T* const to = dy + static_cast<std::int64_t>(place) * d;
#pragma unroll 4
      for (int c = lane() * kWidth; c < d; c += kWarp * kWidth) {
        const auto slope = load<kWidth>(dout + c);  // from the nearest cache but for the first expert
        const auto v = load_once<kWidth>(from + c);
        float scaled[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          dot = fmaf(slope[i], v[i], dot);
          scaled[i] = weight * slope[i];
        }
        store<kWidth>(to + c, scaled);
      }
      dot = warp_sum(dot);
    }
    if (lane() == 0) dweights[row * k + j] = dot;
  }
}

// The largest magnitude of a block's warps goes to the record. All threads of the block take part.
__device__ void record_largest(const LargestBits& largest, float* amax) {
  __shared__ std::uint32_t of_warps[kMaxWarps];
  const int thread = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  if (amax) largest.put(of_warps, thread);
  __syncthreads();
  if (amax && thread == 0) LargestBits::record(of_warps, kTokensAtOnce, amax);
}

// gather_rows in eight bits, and as it is where y is there: a row is cast once for all its places.
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    gather_cast_rows(const bf16* x, const std::int32_t* places, std::int64_t n, int k, int d, bf16* y,
                     const CastTo to) {
  const std::int64_t row = own_row();
  const float scale = to.scale->scale;
  LargestBits largest;
  if (row < n && places[row * k] != kNowhere) {  // a token has all its choices or none
    x += row * d, places += row * k;
#pragma unroll 4
    for (int c = lane() * 8; c < d; c += kWarp * 8) {
      const auto v = load_once<8>(x + c);
      largest.add(v);
      const uint2 bytes = cast_8<false>(v, scale);
      for (int j = 0; j < k; ++j) {
        const std::int64_t at = static_cast<std::int64_t>(places[j]) * d + c;
        *reinterpret_cast<uint2*>(to.rows + at) = bytes;
        if (y) store<8>(y + at, v);
      }
    }
  }
  record_largest(largest, to.amax);
}

// combine_grad, whose dy is in eight bits, and as it is where it is there.
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    combine_grad_cast(const bf16* dout, const bf16* y, const float* weights, const std::int32_t* places, std::int64_t n,
                      int k, int d, bf16* dy, float* dweights, const CastTo to) {
  const std::int64_t row = own_row();
  const float scale = to.scale->scale;
  LargestBits largest;
  for (int j = 0; row < n && j < k; ++j) {
    const std::int32_t place = places[row * k + j];
    float dot = 0;
    if (place != kNowhere) {
      const float weight = weights[row * k + j];
      const std::int64_t at = static_cast<std::int64_t>(place) * d;
#pragma unroll 4
      for (int c = lane() * 8; c < d; c += kWarp * 8) {
        const auto slope = load<8>(dout + row * d + c);
        const auto v = load_once<8>(y + at + c);
        float scaled[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          dot = fmaf(slope[i], v[i], dot);
          scaled[i] = weight * slope[i];
        }
        const auto rounded = Vector<bf16, 8>::from(scaled);
        largest.add(rounded);
        *reinterpret_cast<uint2*>(to.rows + at + c) = cast_8<true>(rounded, scale);
        if (dy) store<8>(dy + at + c, rounded);
      }
      dot = warp_sum(dot);
    }
    if (lane() == 0) dweights[row * k + j] = dot;
  }
  record_largest(largest, to.amax);
}

// A block has a group of rows, a warp every kTokensAtOnce-th of them; the sums over rows of probabilities lie in shared
// memory, [kTokensAtOnce, E + 2], a warp's each.
__global__ void __launch_bounds__(kWarp* kTokensAtOnce)
    sum_probs(const float* probs, const float* lse, std::int64_t n, int experts, double* partial) {
  extern __shared__ double sums[];
  const int columns = experts + 2;
  double* const own = sums + threadIdx.y * columns;
  for (int e = lane(); e < columns; e += kWarp) own[e] = 0;
  __syncwarp();
  double entropy = 0, squares = 0;
  const std::int64_t begin = blockIdx.x * n / gridDim.x, end = (blockIdx.x + 1) * n / gridDim.x;
  for (std::int64_t row = begin + threadIdx.y; row < end; row += kTokensAtOnce) {
    for (int e = lane(); e < experts; e += kWarp) {
      const float p = probs[row * experts + e];
      own[e] += p;
      if (p > 0) entropy -= static_cast<double>(p) * logf(p);
    }
    if (lane() == 0) squares += static_cast<double>(lse[row]) * lse[row];
  }
  entropy = warp_sum(entropy);
  if (lane() == 0) own[experts] = entropy, own[experts + 1] = squares;
  __syncthreads();
  for (int c = threadIdx.y * kWarp + threadIdx.x; c < columns; c += kWarp * kTokensAtOnce) {
    double sum = 0;
    for (int warp = 0; warp < kTokensAtOnce; ++warp) sum += sums[warp * columns + c];
    partial[static_cast<std::int64_t>(blockIdx.x) * columns + c] = sum;
  }
}
// A row of load.
__global__ void __launch_bounds__(kPlaceThreads)
    finish_load(const std::int32_t* counts, const double* partial, int groups, int experts, double* load) {
  const int c = blockIdx.x * kPlaceThreads + threadIdx.x;
  if (c >= 2 * experts + 2) return;
  double sum = c < experts ? counts[c] : 0;
  if (c >= experts) {
    for (int g = 0; g < groups; ++g) sum += partial[static_cast<std::int64_t>(g) * (experts + 2) + c - experts];
  }
  load[c] = sum;
}

constexpr int kBalanceThreads = 1024;

// One block; a thread has an expert at a time.
__global__ void __launch_bounds__(kBalanceThreads)
    balance_loss(const double* load, int layers, int experts, const std::int32_t* targets, std::int64_t n,
                 int per_token, double coefficient, double z_coefficient, bool pooled, bool accumulate, float* gradient,
                 double* totals) {
  __shared__ double parts[4][kMaxWarps];
  const int columns = 2 * experts + 2;
  double found = 0, routed = 0, both = 0, z = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += kBalanceThreads) found += targets[i] >= 0;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalanceThreads) {
    double count = 0, probs = 0;
    for (int l = 0; l < layers; ++l) {
      const double here = load[l * columns + e], mass = load[l * columns + experts + e];
      count += here;
      probs += mass;
      if (!pooled) both += here * mass;
      double& total = totals[l * (experts + 1) + e];
      total = accumulate ? total + here : here;
    }
    routed += count;
    if (pooled) both += count * probs;
  }
  for (int l = static_cast<int>(threadIdx.x); l < layers; l += kBalanceThreads) {
    const double entropy = load[l * columns + 2 * experts];
    z += load[l * columns + 2 * experts + 1];
    double& total = totals[l * (experts + 1) + experts];
    total = accumulate ? total + entropy : entropy;
  }
  const double pairs = row_sum(found, parts[0]), rows = row_sum(routed, parts[1]) / per_token;  // layers x tokens
  const double products = row_sum(both, parts[2]), squares = row_sum(z, parts[3]);
  const double share = rows > 0 ? static_cast<double>(experts) * (pooled ? 1 : layers) / (rows * rows) : 0;
  const double balance = share * products * pairs, z_loss = rows > 0 ? squares / rows * pairs : 0;
  for (int c = static_cast<int>(threadIdx.x); c < experts + 1; c += kBalanceThreads) {
    double& total = totals[static_cast<std::int64_t>(layers) * (experts + 1) + c];
    const double value = c == 0 ? balance : c == 1 ? z_loss : 0;
    total = accumulate ? total + value : value;
  }
  if (!gradient) return;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kBalanceThreads) {
    double count = 0;
    for (int l = 0; l < layers; ++l) count += load[l * columns + e];
    for (int l = 0; l < layers; ++l)
      gradient[l * (experts + 1) + e] =
          static_cast<float>(coefficient * pairs * share * (pooled ? count : load[l * columns + e]));
  }
  for (int l = static_cast<int>(threadIdx.x); l < layers; l += kBalanceThreads)
    gradient[l * (experts + 1) + experts] = static_cast<float>(rows > 0 ? z_coefficient * pairs * 2 / rows : 0);
}

int small(std::int64_t i) { return static_cast<int>(i); }

// Clears what belongs to no token of an array of the experts' rows.
void clear_nobodys(const Tensor& rows, const Tensor& y, const Launch& launch) {
  for_type_and_width(y.dtype, in_vectors(y.columns(), {y}), [&]<class T, int kWidth>() {
    clear_rows_of_nobody<T, kWidth><<<blocks_for(y.rows(), kWarp * kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        rows.i32(), y.rows(), y.as<T>(), small(y.columns()));
  });
  REDLINE_LAUNCHED();
}

// Copies in eight bits that a kernel of rows has to write: of nobody's rows it writes zeros here.
CastTo rows_to_cast(const Fp8Copies<Tensor>& to, DType format, const Tensor& rows, const Tensor& full,
                    const Launch& launch) {
  const std::int64_t m = to.rows.rows(), d = to.rows.columns();
  check_copies(to, m, d);
  REDLINE_CHECK(to.rows.dtype == format, "rows of experts in {}", name_of(to.rows.dtype));
  clear_nobodys(rows, {to.rows.data, DType::bf16, {m, d / 2}}, launch);  // two zeros at a time
  if (full.present()) clear_nobodys(rows, full, launch);
  return cast_to(to, Columns::any);
}
void turn_rows_over(const Fp8Copies<Tensor>& to, const Launch& launch) {
  if (to.columns.present()) turn_over(to.rows, to.rows.columns(), to.columns, launch.stream);
}

}  // namespace

void run(const Route<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), experts = op.weight.rows(), k = op.choices.columns();
  REDLINE_CHECK(k >= 1 && k <= experts, "{} of {} experts", k, experts);
  gemm(product(op), launch);
  const std::int32_t* const end =
      op.doc_offsets.present() ? op.doc_offsets.i32() + op.doc_offsets.elements() - 1 : nullptr;
  for_experts(experts, [&]<int kPerLane>() {
    choose_experts<kPerLane><<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.probs.f32(), end, n, small(experts), small(k), op.normalise, op.lse.f32(), op.choices.i32(),
        op.weights.f32());
  });
  REDLINE_LAUNCHED();
}

void run(const RouteGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), experts = op.weight.rows(), k = op.choices.columns();
  const float* const balance = op.own_balance();
  for_experts(experts, [&]<int kPerLane>() {
    const auto start = [&]<class T>(T* dlogits) {
      logits_grad<T, kPerLane><<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
          op.probs.f32(), op.lse.f32(), op.choices.i32(), op.weights.f32(), op.dweights.f32(), balance, n,
          small(experts), small(k), op.normalise, dlogits);
    };
    op.x.dtype == DType::bf16 ? start(op.dlogits.as<bf16>()) : start(op.dlogits.f32());
  });
  REDLINE_LAUNCHED();
  for (const Gemm& g : products(op)) gemm(g, launch);
}

void run(const SortByExpert<Tensor>& op, const Launch& launch) {
  const std::int64_t all = op.choices.elements(), experts = op.counts.elements(), m = op.rows.elements();
  REDLINE_CHECK(op.temporary.present() && op.temporary.bytes() >= sort_scratch_bytes(all, experts),
                "a sort of {} choices between {} experts has too little scratch", all, experts);
  const unsigned pieces = blocks_for(all, kSortPiece);
  const std::size_t shared = static_cast<std::size_t>(kSortWarps * experts) * sizeof(std::int32_t);
  REDLINE_CHECK(shared <= 48 * 1024, "{} experts; a card's sort takes up to 1536", experts);
  const dim3 threads(kWarp, kSortWarps);
  auto* const by_piece = op.temporary.as<std::int32_t>();
  count_choices<<<pieces, threads, shared, launch.stream>>>(op.choices.i32(), all, small(experts), by_piece,
                                                            op.rows.i32(), m);
  REDLINE_LAUNCHED();
  add_up_pieces<<<1, dim3(kWarp, kMaxWarps), 0, launch.stream>>>(by_piece, static_cast<int>(pieces), small(experts),
                                                                 small(op.align), op.counts.i32(), op.offsets.i32());
  REDLINE_LAUNCHED();
  place_choices<<<pieces, threads, shared, launch.stream>>>(op.choices.i32(), all, small(experts), by_piece,
                                                            op.offsets.i32(), op.rows.i32(), op.places.i32());
  REDLINE_LAUNCHED();
}

void run(const GatherRows<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), d = op.x.columns(), k = op.places.columns();
  if (op.fp8.present()) {
    REDLINE_CHECK(in_vectors(d, {op.x, op.y}), "rows of experts that are not aligned");
    const CastTo to = rows_to_cast(op.fp8, DType::e4m3, op.rows, op.y, launch);
    gather_cast_rows<<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.x.as<bf16>(), op.places.i32(), n, small(k), small(d), op.y.as<bf16>(), to);
    REDLINE_LAUNCHED();
    return turn_rows_over(op.fp8, launch);
  }
  clear_nobodys(op.rows, op.y, launch);
  for_type_and_width(op.y.dtype, in_vectors(d, {op.x, op.y}), [&]<class T, int kWidth>() {
    gather_rows<T, kWidth><<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.x.as<T>(), op.places.i32(), n, small(k), small(d), op.y.as<T>());
  });
  REDLINE_LAUNCHED();
}

void run(const Combine<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.out.rows(), d = op.out.columns(), k = op.places.columns();
  for_type_and_width(op.out.dtype, in_vectors(d, {op.y, op.out}), [&]<class T, int kWidth>() {
    combine_rows<T, kWidth><<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.y.as<T>(), op.weights.present() ? op.weights.f32() : nullptr, op.places.i32(), n, small(k), small(d),
        op.accumulate, op.out.as<T>());
  });
  REDLINE_LAUNCHED();
}

void run(const CombineGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dout.rows(), d = op.dout.columns(), k = op.places.columns();
  if (op.fp8.present()) {
    REDLINE_CHECK(in_vectors(d, {op.dout, op.y, op.dy}), "rows of experts that are not aligned");
    const CastTo to = rows_to_cast(op.fp8, DType::e5m2, op.rows, op.dy, launch);
    combine_grad_cast<<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.dout.as<bf16>(), op.y.as<bf16>(), op.weights.f32(), op.places.i32(), n, small(k), small(d), op.dy.as<bf16>(),
        op.dweights.f32(), to);
    REDLINE_LAUNCHED();
    return turn_rows_over(op.fp8, launch);
  }
  clear_nobodys(op.rows, op.dy, launch);
  for_type_and_width(op.dy.dtype, in_vectors(d, {op.dout, op.y, op.dy}), [&]<class T, int kWidth>() {
    combine_grad<T, kWidth><<<blocks_for(n, kTokensAtOnce), kWarpsOfTokens, 0, launch.stream>>>(
        op.dout.as<T>(), op.y.as<T>(), op.weights.f32(), op.places.i32(), n, small(k), small(d), op.dy.as<T>(),
        op.dweights.f32());
  });
  REDLINE_LAUNCHED();
}

void run(const RouterLoad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.probs.rows(), experts = op.probs.columns(), groups = op.partial.rows();
  const std::size_t shared = static_cast<std::size_t>(kTokensAtOnce * (experts + 2)) * sizeof(double);
  REDLINE_CHECK(shared <= 48 * 1024, "{} experts; a card's sums take up to 766", experts);
  sum_probs<<<static_cast<unsigned>(groups), kWarpsOfTokens, shared, launch.stream>>>(
      op.probs.f32(), op.lse.f32(), n, small(experts), op.partial.as<double>());
  REDLINE_LAUNCHED();
  finish_load<<<blocks_for(load_columns(experts), kPlaceThreads), kPlaceThreads, 0, launch.stream>>>(
      op.counts.i32(), op.partial.as<double>(), small(groups), small(experts),
      op.load.as<double>() + op.layer * load_columns(experts));
  REDLINE_LAUNCHED();
}

void run(const BalanceLoss<Tensor>& op, const Launch& launch) {
  balance_loss<<<1, kBalanceThreads, 0, launch.stream>>>(
      op.load.as<double>(), small(op.load.rows()), small(op.totals.columns() - 1), op.targets.i32(),
      op.targets.elements(), small(op.per_token), static_cast<double>(op.coefficient),
      static_cast<double>(op.z_coefficient), op.pooled, op.accumulate,
      op.gradient.present() ? op.gradient.f32() : nullptr, op.totals.as<double>());
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
