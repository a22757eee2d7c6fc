// Head and cross entropy, chunk by chunk of rows:  logits = x W^T;  loss = logsumexp(logits) - logits[target];
//   dlogits = (1 + 2 z_loss logsumexp) softmax(logits) - onehot(target), over the logits;
//   dx = dlogits W;  dW (+)= dlogits^T x.
// The products are gemm's, a chunk at a time. Between them a row of logits is blockDim.x threads: one pass for the
// largest and the sum of exp, which leaves what fits of the row in shared memory, and one that turns it into dlogits,
// each thread over the vectors it has read itself. A block is one row, or several where a row is a warp's. Gradients in
// eight bits: the second pass writes dlogits as e5m2 to the front of the row that it reads, and another kernel turns
// them over. This moves 5 bytes a logit; with tiles that make both forms of the logits it would be 6.
#include <algorithm>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/fp8_casts.cuh"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kVectorsOfThread = 13;  // of a row: three blocks of 32k logits, two of 50k, have the registers they need
constexpr int kBatch = 4;             // of them on their way at once

struct Rows {
  std::int64_t count;
  std::int32_t vocab, stride;  // elements of a row, and from one row to the next
  std::int32_t cached;         // vectors of a row in shared memory
  float z_loss;
};

// The contents of a row of logits afterwards: logits, or dlogits in their own type or in eight bits.
enum class Leave { logits, dlogits, e5m2 };

template <class T, int kWidth, Leave kLeave>
__global__ void __launch_bounds__(1024) cross_entropy(T* logits, const std::int32_t* targets, float* losses,
                                                      const Rows rows, const Fp8Scale* dlogits_scale) {
  constexpr bool kGradient = kLeave != Leave::logits;
  using Part = Vector<T, kWidth>;
  extern __shared__ uint4 cache[];
  __shared__ float tops[kMaxWarps], sums[kMaxWarps];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows.count) return;  // whole warps, and only where a row is one: no barrier misses them
  T* const x = logits + row * rows.stride;
  Part* const kept = reinterpret_cast<Part*>(cache) + threadIdx.y * rows.cached;
  const std::int32_t target = targets[row], vectors = ceil_div(rows.vocab, kWidth);
  const std::int32_t thread = threadIdx.x, threads = blockDim.x;

  if (target < 0) {
    if (thread == 0) losses[row] = 0;
    const std::int32_t written = kLeave == Leave::e5m2 ? vectors / 2 : vectors;
    for (std::int32_t v = thread; kGradient && v < written; v += threads) store(x + v * kWidth, Part{});
    return;
  }
  // The thread that will overwrite the target's logit reads it.
  const bool has_target = target / kWidth % threads == thread;
  const float at_target = has_target ? load<1>(x + target)[0] : 0.0f;

  // Beyond the vocabulary a row may end in padding, which holds anything.
  const auto logit = [&](const Part& part, std::int32_t v, int e) {
    return v * kWidth + e < rows.vocab ? part[e] : -INFINITY;
  };
  float top = -INFINITY, sum = 0;
  for (std::int32_t first = thread; first < vectors; first += kBatch * threads) {
    Part part[kBatch];
    float batch_top = top;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const std::int32_t v = first + k * threads;
      part[k] = v < vectors ? load<kWidth>(x + v * kWidth) : Part{};
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const std::int32_t v = first + k * threads;
      if (kGradient && v < rows.cached) kept[v] = part[k];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) batch_top = fmaxf(batch_top, logit(part[k], v, e));
    }
    sum *= __expf(top - batch_top);
    top = batch_top;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum += __expf(logit(part[k], first + k * threads, e) - top);
    }
  }
  const float row_top = row_max(top, tops);
  sum = row_sum(sum * __expf(top - row_top), sums);
  if (has_target) losses[row] = logf(sum) + (row_top - at_target);

  float scale = 1.0f / sum;
  if (kGradient && rows.z_loss != 0.0f) scale *= 1.0f + 2.0f * rows.z_loss * (logf(sum) + row_top);
  const auto dlogits = [&](std::int32_t v) {
    const Part part = v < rows.cached ? kept[v] : load<kWidth>(x + v * kWidth);
    float out[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      out[e] = __expf(logit(part, v, e) - row_top) * scale - (v * kWidth + e == target ? 1.0f : 0.0f);
    }
    return Part::from(out);
  };
  if constexpr (kLeave == Leave::dlogits) {
#pragma unroll 2
    for (std::int32_t v = thread; v < vectors; v += threads) store(x + v * kWidth, dlogits(v));
  }
  if constexpr (kLeave == Leave::e5m2) {
    // Vector v goes to where vector v / 2 was, which another thread may have read. All have made the first pass here,
    // so what they have kept is safe.
    const float cast_scale = dlogits_scale->scale;
    uint2* const to = reinterpret_cast<uint2*>(x);
    __syncwarp();
    if (vectors <= 2 * rows.cached) {
#pragma unroll 2
      for (std::int32_t v = thread; v < vectors; v += threads) to[v] = cast_8<true>(dlogits(v), cast_scale);
      return;
    }
    // Vectors that were not kept are read again: no thread writes before all have read so far.
    for (std::int32_t first = 0; first < vectors; first += threads) {
      const std::int32_t v = first + thread;
      const uint2 eight = v < vectors ? cast_8<true>(dlogits(v), cast_scale) : uint2{};
      __syncthreads();
      if (v < vectors) to[v] = eight;
    }
  }
}

// One block: the losses in a fixed order, in double.
__global__ void __launch_bounds__(1024) sum_losses(const float* losses, std::int64_t n, double* sum, bool accumulate) {
  __shared__ double parts[kMaxWarps];
  double mine = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) mine += static_cast<double>(losses[i]);
  const double all = row_sum(mine, parts);
  if (threadIdx.x == 0) *sum = accumulate ? *sum + all : all;
}

int shared_limit() {
  int card = 0, bytes = 0;
  REDLINE_CUDA(cudaGetDevice(&card));
  REDLINE_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, card));
  return bytes - 1024;  // what the kernel has of its own
}

template <class T, int kWidth, Leave kLeave>
void launch_cross_entropy(T* logits, const std::int32_t* targets, float* losses, Rows rows,
                          const Fp8Scale* dlogits_scale, cudaStream_t stream) {
  const std::int64_t vectors = ceil_div(rows.vocab, kWidth);
  const std::int64_t threads =
      std::min<std::int64_t>(1024, whole_warps(ceil_div<std::int64_t>(vectors, kVectorsOfThread)));
  const std::int64_t rows_of_block = threads == kWarp ? 8 : 1;
  const auto vector_bytes = static_cast<std::int64_t>(sizeof(Vector<T, kWidth>));
  const int limit = shared_limit();
  if (kLeave != Leave::logits)
    rows.cached = static_cast<std::int32_t>(std::min(vectors, limit / vector_bytes / rows_of_block));
  const auto shared = static_cast<std::size_t>(rows.cached * vector_bytes * rows_of_block);
  const auto kernel = cross_entropy<T, kWidth, kLeave>;
  allow_shared(kernel, static_cast<std::size_t>(limit));  // of all vocabularies alike: graphs outlive a launch
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows_of_block));
  kernel<<<blocks_for(rows.count, rows_of_block), block, shared, stream>>>(logits, targets, losses, rows,
                                                                           dlogits_scale);
  REDLINE_LAUNCHED();
}

void check_fp8(const LmLoss<Tensor>& op, const LogitsChunk& chunk) {
  for (const std::int64_t extent : {op.x.rows(), op.x.columns(), op.weight.rows(), chunk.rows})
    REDLINE_CHECK(extent % 16 == 0, "a head in fp8 of {} x {}, {} tokens in chunks of {}: not multiples of 16",
                  op.weight.rows(), op.x.columns(), op.x.rows(), chunk.rows);
  REDLINE_CHECK(op.x.dtype == DType::bf16 && op.fp8.dlogits.dtype == DType::e5m2 && in_vectors(16, {op.logits}),
                "a head in fp8 of {}, dlogits in {}", name_of(op.x.dtype), name_of(op.fp8.dlogits.dtype));
}

}  // namespace

void run(const LmLoss<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), vocab = op.weight.rows();
  const LogitsChunk chunk = logits_chunk(op.logits);
  const bool in_fp8 = op.dx.present() && op.fp8.present();
  if (in_fp8) check_fp8(op, chunk);
  for (std::int64_t first = 0; first < n; first += chunk.rows) {
    const HeadProducts products = head_products(op, first);
    gemm(products.logits, launch);
    const Rows rows{products.logits.m, static_cast<std::int32_t>(vocab), static_cast<std::int32_t>(chunk.stride), 0,
                    op.z_loss};
    const auto pass = [&](const auto& kernel, auto* logits) {
      kernel(logits, op.targets.i32() + first, op.losses.f32() + first, rows, op.fp8.dlogits_scale.as<Fp8Scale>(),
             launch.stream);
    };
    if (in_fp8) {
      pass(launch_cross_entropy<bf16, 8, Leave::e5m2>, op.logits.as<bf16>());
      const Tensor by_rows{op.logits.data, op.fp8.dlogits.dtype, {rows.count, vocab}};
      turn_over(by_rows, products.dx.lda, op.fp8.dlogits, launch.stream);
    } else {
      for_type_and_width(op.x.dtype, in_vectors(chunk.stride, {op.logits}), [&]<class T, int kWidth>() {
        pass(op.dx.present() ? launch_cross_entropy<T, kWidth, Leave::dlogits>
                             : launch_cross_entropy<T, kWidth, Leave::logits>,
             op.logits.as<T>());
      });
    }
    if (!op.dx.present()) continue;
    gemm(products.dx, launch);
    gemm(products.dweight, launch);
  }
  sum_losses<<<1, 1024, 0, launch.stream>>>(op.losses.f32(), n, op.loss_sum.as<double>(), op.accumulate_loss);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
