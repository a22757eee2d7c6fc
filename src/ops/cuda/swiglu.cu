// SwiGLU, a row of gate_up is [gate | up]:  y = gate * s * up,  s = sigmoid(gate) = 1 / (1 + exp(-gate)).
// Gradient:  dup = dy * gate * s;  dgate = dy * up * s * (1 + gate * (1 - s)).
// One thread has one vector of y: the vectors of gate and up under it. It reads both before it writes either, so the
// gradient may be in place.
#include "device/cuda/vectors.cuh"
#include "ops/cuda/kernels.h"

namespace redline::ops::cuda {
namespace {

using namespace device::cuda;

// Where exp overflows the quotient is 0, as it should be.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads) swiglu(const T* gate_up, T* y, std::int64_t n, std::int32_t f) {
  const Place at = place_of_thread<kWidth>(n, f);
  if (!at.inside) return;
  const T* from = gate_up + at.row * 2 * f + at.column;
  const auto gate = load<kWidth>(from), up = load<kWidth>(from + f);
  float out[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out[e] = gate[e] * up[e] * sigmoid(gate[e]);
  store(y + at.row * f + at.column, out);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kPlaceThreads)
    swiglu_grad(const T* gate_up, const T* dy, T* dgate_up, std::int64_t n, std::int32_t f) {
  const Place at = place_of_thread<kWidth>(n, f);
  if (!at.inside) return;
  const T* from = gate_up + at.row * 2 * f + at.column;
  const auto gate = load<kWidth>(from), up = load<kWidth>(from + f);
  const auto slope = load<kWidth>(dy + at.row * f + at.column);
  float dgate[kWidth], dup[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float g = gate[e], s = sigmoid(g);
    dup[e] = slope[e] * g * s;
    dgate[e] = slope[e] * up[e] * s * (1.0f + g * (1.0f - s));
  }
  T* to = dgate_up + at.row * 2 * f + at.column;
  store(to, dgate);
  store(to + f, dup);
}

}  // namespace

void run(const SwiGlu<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.y.rows(), f = op.y.columns();
  for_type_and_width(op.y.dtype, in_vectors(f, {op.gate_up, op.y}), [&]<class T, int kWidth>() {
    swiglu<T, kWidth><<<place_blocks(n, f, kWidth), kPlaceThreads, 0, launch.stream>>>(op.gate_up.as<T>(), op.y.as<T>(),
                                                                                       n, static_cast<std::int32_t>(f));
  });
  REDLINE_LAUNCHED();
}

void run(const SwiGluGrad<Tensor>& op, const Launch& launch) {
  const std::int64_t n = op.dy.rows(), f = op.dy.columns();
  for_type_and_width(op.dy.dtype, in_vectors(f, {op.gate_up, op.dy, op.dgate_up}), [&]<class T, int kWidth>() {
    swiglu_grad<T, kWidth><<<place_blocks(n, f, kWidth), kPlaceThreads, 0, launch.stream>>>(
        op.gate_up.as<T>(), op.dy.as<T>(), op.dgate_up.as<T>(), n, static_cast<std::int32_t>(f));
  });
  REDLINE_LAUNCHED();
}

}  // namespace redline::ops::cuda
