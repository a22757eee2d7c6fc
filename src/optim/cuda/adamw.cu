// AdamW, g scaled and clipped, skipped whole when the norm was not finite:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr * (wd * p + (m / c1) / (sqrt(v / c2) + eps));
//   working = p in bf16. Refresh is that last line alone, and may copy in fp32.
// One thread has four elements of every array; what is left over at the end goes one to a thread. Everything that
// changes from step to step is read from the step's state, the same address for all: one cached load.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"
#include "optim/cuda/share.cuh"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = kShareThreads;

struct Arrays {
  float* parameters;
  const float* gradients;
  float *moment1, *moment2;
  bf16* working;  // or none
};

template <int N>
__device__ void update(const Arrays& a, std::int64_t first, const AdamWSettings& s, const StepState& state,
                       float scale) {
  const auto p = load<N>(a.parameters + first), gradient = load<N>(a.gradients + first);
  const auto m = load<N>(a.moment1 + first), v = load<N>(a.moment2 + first);
  float p_out[N], m_out[N], v_out[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float g = scale * gradient[e];
    m_out[e] = s.beta1 * m[e] + (1.0f - s.beta1) * g;
    v_out[e] = s.beta2 * v[e] + (1.0f - s.beta2) * (g * g);
    const float step = (m_out[e] / state.correction1) / (sqrtf(v_out[e] / state.correction2) + s.eps);
    p_out[e] = p[e] - state.lr * (s.weight_decay * state.weight_decay_share) * p[e] - state.lr * step;
  }
  store(a.parameters + first, p_out);
  store(a.moment1 + first, m_out);
  store(a.moment2 + first, v_out);
  if (a.working) store(a.working + first, p_out);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) adamw(const Arrays arrays, std::int64_t n, AdamWSettings settings,
                                                  const StepState* state, const UpdateResult* result) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside || result->finite != 1.0f) return;
  const StepState step = *state;
  if (share.whole) {
    update<kWidth>(arrays, share.first, settings, step, result->grad_scale);
  } else {
    update<1>(arrays, share.first, settings, step, result->grad_scale);
  }
}

template <int N, class T>
__device__ void copy(const float* from, T* to) {
  const auto x = load<N>(from);
  store<N>(to, x.at);
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) refresh(const float* parameters, T* working, std::int64_t n) {
  const Share<kWidth> share = share_of_thread<kWidth>(n);
  if (!share.inside) return;
  if (share.whole) {
    copy<kWidth>(parameters + share.first, working + share.first);
  } else {
    copy<1>(parameters + share.first, working + share.first);
  }
}

bf16* working_copy(const Tensor& working) {
  REDLINE_CHECK(!working.present() || working.dtype == DType::bf16, "working copies are bf16, not {}",
                name_of(working.dtype));
  return working.as<bf16>();
}

}  // namespace

void run(const AdamW<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.parameters.elements();
  const Arrays arrays{op.parameters.f32(), op.gradients.f32(), op.moment1.f32(), op.moment2.f32(),
                      working_copy(op.working)};
  const bool vectors = in_vectors(8, {op.parameters, op.gradients, op.moment1, op.moment2, op.working});
  const auto kernel = vectors ? adamw<4> : adamw<1>;
  kernel<<<share_blocks(n, vectors ? 4 : 1), kThreads, 0, launch.stream>>>(
      arrays, n, op.settings, op.state.as<StepState>(), op.result.as<UpdateResult>());
  REDLINE_LAUNCHED();
}

void run(const Refresh<Tensor>& op, const device::cuda::Launch& launch) {
  const std::int64_t n = op.parameters.elements();
  const auto copy_to = [&]<class T>(T* working) {
    const bool vectors = in_vectors(8, {op.parameters, op.working});
    const auto kernel = vectors ? refresh<8, T> : refresh<1, T>;
    kernel<<<share_blocks(n, vectors ? 8 : 1), kThreads, 0, launch.stream>>>(op.parameters.f32(), working, n);
    REDLINE_LAUNCHED();
  };
  if (op.working.dtype == DType::f32)
    copy_to(op.working.f32());
  else
    copy_to(working_copy(op.working));
}

}  // namespace redline::optim::cuda
