// average = parameters where the share is 1, else average + share * (parameters - average), and nothing where the
// update was not made; exchange: both change places. A thread has four elements of both arrays, or one where they do
// not lie in vectors; what is left over at the end goes one to a thread.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"
#include "optim/cuda/share.cuh"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

template <int N>
__device__ void add(const float* parameters, float* average, float share) {
  const auto p = load<N>(parameters);
  float out[N];
  if (share == 1.0f) {
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = p[e];
  } else {
    const auto a = load<N>(average);
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = a[e] + share * (p[e] - a[e]);
  }
  store(average, out);
}

template <int kWidth>
__global__ void __launch_bounds__(kShareThreads) average(const float* parameters, float* average, std::int64_t n,
                                                         const StepState* state, const UpdateResult* result) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside || result->finite != 1.0f) return;
  if (share.whole)
    add<kWidth>(parameters + share.first, average + share.first, state->average);
  else
    add<1>(parameters + share.first, average + share.first, state->average);
}

template <int N>
__device__ void swap(float* a, float* b) {
  const auto x = load<N>(a), y = load<N>(b);
  store<N>(a, y);
  store<N>(b, x);
}

template <int kWidth>
__global__ void __launch_bounds__(kShareThreads) exchange(float* a, float* b, std::int64_t n) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside) return;
  if (share.whole)
    swap<kWidth>(a + share.first, b + share.first);
  else
    swap<1>(a + share.first, b + share.first);
}

}  // namespace

void run(const Average<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.average.elements();
  const bool vectors = in_vectors(4, {op.parameters, op.average});
  const auto kernel = vectors ? average<4> : average<1>;
  kernel<<<share_blocks(n, vectors ? 4 : 1), kShareThreads, 0, launch.stream>>>(
      op.parameters.f32(), op.average.f32(), n, op.state.as<StepState>(), op.result.as<UpdateResult>());
  REDLINE_LAUNCHED();
}

void run(const Exchange<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.average.elements();
  const bool vectors = in_vectors(4, {op.parameters, op.average});
  const auto kernel = vectors ? exchange<4> : exchange<1>;
  kernel<<<share_blocks(n, vectors ? 4 : 1), kShareThreads, 0, launch.stream>>>(op.parameters.f32(), op.average.f32(),
                                                                                n);
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
