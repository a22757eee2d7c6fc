// Head and cross entropy, chunk by chunk of rows:  logits = x W^T;  loss = logsumexp(logits) - logits[target];
//   dlogits = softmax(logits) - onehot(target), over the logits;  dx = dlogits W;  dW (+)= dlogits^T x.
// The products are gemm's, a chunk at a time. Between them a row of logits is blockDim.x threads: one pass for the
// largest and the sum of exp, which leaves what fits of the row in shared memory, and one that turns it into dlogits,
// each thread over the vectors it has read itself. A block is one row, or several where a row is a warp's.
#include <algorithm>

#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

constexpr int kVectorsOfThread = 13;  // of a row: three blocks of 32k logits, two of 50k, have the registers they need
constexpr int kBatch = 4;             // of them on their way at once

struct Rows {
  std::int64_t count;
  std::int32_t vocab, stride;  // elements of a row, and from one row to the next
  std::int32_t cached;         // vectors of a row in shared memory
};

template <class T, int kWidth, bool kGradient>
__global__ void __launch_bounds__(1024)
    cross_entropy(T* logits, const std::int32_t* targets, float* losses, const Rows rows) {
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
    for (std::int32_t v = thread; kGradient && v < vectors; v += threads) store(x + v * kWidth, Part{});
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

  if constexpr (kGradient) {
    const float scale = 1.0f / sum;
#pragma unroll 2
    for (std::int32_t v = thread; v < vectors; v += threads) {
      const Part part = v < rows.cached ? kept[v] : load<kWidth>(x + v * kWidth);
      float out[kWidth];
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        out[e] = __expf(logit(part, v, e) - row_top) * scale - (v * kWidth + e == target ? 1.0f : 0.0f);
      }
      store(x + v * kWidth, out);
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

template <class T, int kWidth, bool kGradient>
void launch_cross_entropy(T* logits, const std::int32_t* targets, float* losses, Rows rows, cudaStream_t stream) {
  const std::int64_t vectors = ceil_div(rows.vocab, kWidth);
  const std::int64_t threads =
      std::min<std::int64_t>(1024, whole_warps(ceil_div<std::int64_t>(vectors, kVectorsOfThread)));
  const std::int64_t rows_of_block = threads == kWarp ? 8 : 1;
  const auto vector_bytes = static_cast<std::int64_t>(sizeof(Vector<T, kWidth>));
  const int limit = shared_limit();
  if (kGradient) rows.cached = static_cast<std::int32_t>(std::min(vectors, limit / vector_bytes / rows_of_block));
  const auto shared = static_cast<std::size_t>(rows.cached * vector_bytes * rows_of_block);
  const auto kernel = cross_entropy<T, kWidth, kGradient>;
  allow_shared(kernel, static_cast<std::size_t>(limit));  // of all vocabularies alike: graphs outlive a launch
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(rows_of_block));
  kernel<<<blocks_for(rows.count, rows_of_block), block, shared, stream>>>(logits, targets, losses, rows);
  REDLINE_LAUNCHED();
}

}  // namespace

void run(const LmLoss<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.x.rows(), vocab = op.weight.rows();
  const LogitsChunk chunk = logits_chunk(op.logits);
  for (std::int64_t first = 0; first < n; first += chunk.rows) {
    const HeadProducts products = head_products(op, first);
    gemm(products.logits, launch);
    for_type_and_width(op.x.dtype, in_vectors(chunk.stride, {op.logits}), [&]<class T, int kWidth>() {
      const auto launch_kernel =
          op.dx.present() ? launch_cross_entropy<T, kWidth, true> : launch_cross_entropy<T, kWidth, false>;
      launch_kernel(op.logits.as<T>(), op.targets.i32() + first, op.losses.f32() + first,
                    {products.logits.m, static_cast<std::int32_t>(vocab), static_cast<std::int32_t>(chunk.stride), 0},
                    launch.stream);
    });
    if (!op.dx.present()) continue;
    gemm(products.dx, launch);
    gemm(products.dweight, launch);
  }
  sum_losses<<<1, 1024, 0, launch.stream>>>(op.losses.f32(), n, op.loss_sum.as<double>(), op.accumulate_loss);
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
