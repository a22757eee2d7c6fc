// y = a + b, added in fp32. One thread has one vector.
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) add(const T* a, const T* b, T* y, std::int64_t n, std::int32_t d) {
  const Place at = place_of_thread<kWidth>(n, d);
  if (!at.inside) return;
  const std::int64_t i = at.row * d + at.column;
  const auto left = load_once<kWidth>(a + i), right = load_once<kWidth>(b + i);
  float sum[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum[e] = left[e] + right[e];
  store(y + i, Vector<T, kWidth>::from(sum));
}

}  // namespace

void run(const Add<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.y.rows(), d = op.y.columns();
  for_type_and_width(op.y.dtype, in_vectors(d, {op.a, op.b, op.y}), [&]<class T, int kWidth>() {
    add<T, kWidth><<<place_blocks(n, d, kWidth), kPlaceThreads, 0, launch.stream>>>(
        op.a.as<T>(), op.b.as<T>(), op.y.as<T>(), n, static_cast<std::int32_t>(d));
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
