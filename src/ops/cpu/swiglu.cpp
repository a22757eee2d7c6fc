// Gated linear units, a row of gate_up is [gate | up]:  y = gate * sigmoid(u) * up, where u is gate (SwiGLU) or that of
// GELU's form with tanh (GeGLU).
// Gradient, s = sigmoid(u):  dup = dy * gate * s;  dgate = dy * up * s * (1 + gate * (1 - s) * du).
// A task is a range of rows; the gradient reads gate and up of an element before it writes either, so it may be in
// place.
#include "ops/cpu/kernels.h"
#include "ops/cpu/math.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

// 2 sqrt(2 / pi), and that times 0.044715.
constexpr float kTanh = 1.5957691216f, kCube = 0.0713548163f;

float gelu_argument(float g) { return g * (kTanh + kCube * g * g); }
float gelu_slope(float g) { return kTanh + 3 * kCube * g * g; }

}  // namespace

void run(const SwiGlu<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} does not cast here", op.kName);
  const std::int64_t n = op.y.rows(), f = op.y.columns();
  for_rows(pool, n, f, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* gate = op.gate_up.f32() + i * 2 * f;
      const float* up = gate + f;
      float* y = op.y.f32() + i * f;
      if (op.gate == Gate::silu) {
#pragma omp simd
        for (std::int64_t j = 0; j < f; ++j) y[j] = gate[j] * up[j] * sigmoid(gate[j]);
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < f; ++j) y[j] = gate[j] * up[j] * sigmoid(gelu_argument(gate[j]));
      }
    }
  });
}

void run(const SwiGluGrad<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(!op.fp8.present(), "{} does not cast here", op.kName);
  const std::int64_t n = op.dy.rows(), f = op.dy.columns();
  for_rows(pool, n, f, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* gate = op.gate_up.f32() + i * 2 * f;
      const float* up = gate + f;
      const float* dy = op.dy.f32() + i * f;
      float* dgate = op.dgate_up.f32() + i * 2 * f;
      float* dup = dgate + f;
      if (op.gate == Gate::silu) {
#pragma omp simd
        for (std::int64_t j = 0; j < f; ++j) {
          const float g = gate[j], u = up[j], s = sigmoid(g);
          dup[j] = dy[j] * g * s;
          dgate[j] = dy[j] * u * s * (1.0f + g * (1.0f - s));
        }
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < f; ++j) {
          const float g = gate[j], u = up[j], s = sigmoid(gelu_argument(g));
          dup[j] = dy[j] * g * s;
          dgate[j] = dy[j] * u * s * (1.0f + g * (1.0f - s) * gelu_slope(g));
        }
      }
    }
  });
}

}  // namespace redline::ops::cpu
