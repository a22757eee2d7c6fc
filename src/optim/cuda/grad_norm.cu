// norm = inv_pairs * sqrt(sum g^2);  finite = norm and loss are finite, and the norm is within its limit, if it has
// one; grad_scale = inv_pairs * min(1, clip / (norm + 1e-6)), or 0 where not finite. A block has one of kNormGroups
// ranges, cut by size alone, and adds it up in double; one block then adds the groups, a thread each, in a fixed order.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256;  // 8 blocks a multiprocessor: all groups at once on 128 of them

template <int kWidth>
__global__ void __launch_bounds__(kThreads) sum_squares(const float* gradients, std::int64_t n, double* partial) {
  __shared__ double parts[kMaxWarps];
  const std::int64_t group = blockIdx.x, vectors = n / kWidth;
  const std::int64_t begin = group * vectors / kNormGroups, end = (group + 1) * vectors / kNormGroups;
  double sum = 0;
  const auto add = [&sum](float x) { sum += static_cast<double>(x) * static_cast<double>(x); };
#pragma unroll 4
  for (std::int64_t v = begin + threadIdx.x; v < end; v += kThreads) {
    const auto g = load<kWidth>(gradients + v * kWidth);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) add(g[e]);
  }
  const std::int64_t rest = vectors * kWidth + threadIdx.x;
  if (group == kNormGroups - 1 && rest < n) add(gradients[rest]);
  sum = row_sum(sum, parts);
  if (threadIdx.x == 0) partial[group] = sum;
}

// What the norm is held against, and what it is where that moves: by one thread.
__device__ float limit_of(const UsualNorm& usual, float spike) {
  if (usual.count < kUsualLeast) return 0.0f;
  return static_cast<float>(static_cast<double>(spike) * exp(static_cast<double>(usual.mean_log)));
}
__device__ void follow(UsualNorm& usual, float norm) {
  usual.count = fminf(usual.count + 1.0f, kUsualMost);
  usual.mean_log += (logf(norm) - usual.mean_log) / usual.count;
}

__global__ void __launch_bounds__(kNormGroups)
    finish(const double* partial, const double* loss_sum, const StepState* state, UpdateResult* result, float clip,
           UsualNorm* usual, float spike) {
  __shared__ double parts[kMaxWarps];
  const double sum = row_sum(partial[threadIdx.x], parts);
  if (threadIdx.x != 0) return;
  const double inv_pairs = state ? static_cast<double>(state->inv_pairs) : 1.0, norm = inv_pairs * sqrt(sum);
  const auto grad_norm = static_cast<float>(norm);
  const float limit = usual ? limit_of(*usual, spike) : 0.0f;
  const bool finite =
      isfinite(grad_norm) && (!loss_sum || isfinite(*loss_sum)) && (limit == 0.0f || grad_norm <= limit);
  if (usual && finite && grad_norm > 0.0f) follow(*usual, grad_norm);
  const double clipped = clip > 0 ? fmin(1.0, static_cast<double>(clip) / (norm + 1e-6)) : 1.0;
  *result = {.grad_norm = grad_norm,
             .grad_scale = finite ? static_cast<float>(inv_pairs * clipped) : 0.0f,
             .finite = finite ? 1.0f : 0.0f,
             .limit = limit};
}

}  // namespace

void run(const GradNorm<Tensor>& op, const device::cuda::Launch& launch) {
  static_assert(kNormGroups <= 1024, "finish() has a thread a group");
  const std::int64_t n = op.gradients.elements();
  const auto kernel = in_vectors(4, {op.gradients}) ? sum_squares<4> : sum_squares<1>;
  kernel<<<kNormGroups, kThreads, 0, launch.stream>>>(op.gradients.f32(), n, op.partial.as<double>());
  REDLINE_LAUNCHED();
  finish<<<1, kNormGroups, 0, launch.stream>>>(op.partial.as<double>(), op.loss_sum.as<double>(),
                                               op.state.as<StepState>(), op.result.as<UpdateResult>(), op.clip,
                                               op.usual.as<UsualNorm>(), op.spike);
  REDLINE_LAUNCHED();
}

}  // namespace redline::optim::cuda
