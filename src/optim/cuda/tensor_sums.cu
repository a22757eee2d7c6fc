// sums[t] = sum (x - minus)^2 over a tensor of a flat array. A block adds up one slice of a tensor in double, for all
// tensors at once; a warp a tensor then adds its slices, in a fixed order.
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256;

template <int N>
__device__ double squares(const float* x, const float* minus) {
  const auto v = load<N>(x);
  double sum = 0;
  if (minus) {
    const auto m = load<N>(minus);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const auto d = static_cast<double>(v[e] - m[e]);
      sum += d * d;
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) sum += static_cast<double>(v[e]) * static_cast<double>(v[e]);
  }
  return sum;
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sum_slices(const float* x, const float* minus, const std::int64_t* bounds, double* partial) {
  __shared__ double parts[kMaxWarps];
  const std::int64_t tensor = blockIdx.x / kTensorSlices, slice = blockIdx.x % kTensorSlices;
  const std::int64_t first = bounds[2 * tensor], n = bounds[2 * tensor + 1] - first;
  const std::int64_t begin = first + slice_begin(slice, n), count = slice_begin(slice + 1, n) - slice_begin(slice, n);
  const std::int64_t vectors = count / kWidth;
  x += begin;
  if (minus) minus += begin;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t v = threadIdx.x; v < vectors; v += kThreads)
    sum += squares<kWidth>(x + v * kWidth, minus ? minus + v * kWidth : nullptr);
  const std::int64_t rest = vectors * kWidth + threadIdx.x;
  if (rest < count) sum += squares<1>(x + rest, minus ? minus + rest : nullptr);
  sum = row_sum(sum, parts);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kWarp) add_slices(const double* partial, double* sums) {
  double sum = 0;
  for (std::int64_t s = threadIdx.x; s < kTensorSlices; s += kWarp) sum += partial[blockIdx.x * kTensorSlices + s];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void run(const TensorSums<Tensor>& op, const device::cuda::Launch& launch) {
  const auto tensors = static_cast<unsigned>(op.sums.elements());
  const auto kernel = in_vectors(4, {op.x, op.minus}) ? sum_slices<4> : sum_slices<1>;
  static_assert(kSliceAlignment % 4 == 0, "slices begin with whole vectors");
  kernel<<<tensors* static_cast<unsigned>(kTensorSlices), kThreads, 0, launch.stream>>>(
      op.x.f32(), op.minus.f32(), op.bounds.as<std::int64_t>(), op.partial.as<double>());
  REDLINE_LAUNCHED();
  add_slices<<<tensors, kWarp, 0, launch.stream>>>(op.partial.as<double>(), op.sums.as<double>());
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
