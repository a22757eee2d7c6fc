// Muon around its products, skipped whole when the norm was not finite:
//   M = mu M + g;  U = g + mu M;  x = U / (1.02 ||U|| + 1e-30)
//   u = O, or NorMuon's;  p = p - lr wd p - lr 0.2 sqrt(max(rows, columns)) u;  working = p in bf16
// A block has one part of one matrix: blockIdx.y is the matrix. Squares are summed in double by part, and every block
// of the next kernel adds the parts up in the same order. U is made twice rather than kept: 8 bytes read again instead
// of 4 written and 4 read, and x is rounded once.
#include "base/step_state.h"
#include "device/cuda/vectors.cuh"
#include "optim/cuda/kernels.h"

namespace redline::optim::cuda {
namespace {

using namespace device::cuda;

constexpr int kThreads = 256, kRowsOfBlock = 8;

struct Part {
  std::int64_t from, to;  // vectors of a matrix
};
template <int kWidth>
__device__ Part part_of_block(std::int64_t elements) {
  const std::int64_t vectors = elements / kWidth, part = blockIdx.x, parts = gridDim.x;
  return {part * vectors / parts, (part + 1) * vectors / parts};
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    accumulate(const float* gradients, float* momentum, double* partial, Spread flat, std::int64_t elements,
               const StepState* state, const UpdateResult* result) {
  __shared__ double parts[kMaxWarps];
  if (result->finite != 1.0f) return;
  const float mu = state->momentum, scale = result->grad_scale;
  const std::int64_t at = flat.at(blockIdx.y);
  const Part part = part_of_block<kWidth>(elements);
  double sum = 0;
#pragma unroll 2
  for (std::int64_t v = part.from + threadIdx.x; v < part.to; v += kThreads) {
    const auto gradient = load<kWidth>(gradients + at + v * kWidth), before = load<kWidth>(momentum + at + v * kWidth);
    float after[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float g = scale * gradient[e];
      after[e] = mu * before[e] + g;
      const auto u = static_cast<double>(g + mu * after[e]);
      sum += u * u;
    }
    store(momentum + at + v * kWidth, after);
  }
  sum = row_sum(sum, parts);
  if (threadIdx.x == 0) partial[static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    normalise(const float* gradients, const float* momentum, const double* partial, T* x, Spread flat,
              std::int64_t elements, const StepState* state, const UpdateResult* result) {
  __shared__ double parts[kMaxWarps];
  const bool finite = result->finite == 1.0f;
  const float mu = state->momentum, scale = result->grad_scale;
  const std::int64_t at = flat.at(blockIdx.y), matrix = blockIdx.y;
  double sum = finite && threadIdx.x < gridDim.x ? partial[matrix * gridDim.x + threadIdx.x] : 0.0;
  sum = row_sum(sum, parts);
  const auto factor = static_cast<float>(1.0 / (1.02 * sqrt(sum) + 1e-30));
  const Part part = part_of_block<kWidth>(elements);
#pragma unroll 2
  for (std::int64_t v = part.from + threadIdx.x; v < part.to; v += kThreads) {
    float out[kWidth] = {};
    if (finite) {
      const auto gradient = load<kWidth>(gradients + at + v * kWidth), m = load<kWidth>(momentum + at + v * kWidth);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) out[e] = (scale * gradient[e] + mu * m[e]) * factor;
    }
    store(x + matrix * elements + v * kWidth, out);
  }
}

// NorMuon. A warp has a row.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWarp* kRowsOfBlock)
    row_moments(const T* x, float* moments, Spread by_row, float* squares, float* factors, std::int32_t rows,
                std::int32_t columns, float beta2, const UpdateResult* result) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.y, matrix = blockIdx.y;
  if (row >= rows || result->finite != 1.0f) return;
  const T* const at = x + (matrix * rows + row) * columns;
  float sum = 0;
  for (std::int32_t j = static_cast<std::int32_t>(threadIdx.x) * kWidth; j < columns; j += kWarp * kWidth) {
    const auto value = load<kWidth>(at + j);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += value[e] * value[e];
  }
  sum = warp_sum(sum);
  if (threadIdx.x != 0) return;
  const float square = sum / static_cast<float>(columns);
  float& moment = moments[by_row.at(matrix) + row];
  moment = beta2 * moment + (1.0f - beta2) * square;
  squares[matrix * rows + row] = square;
  factors[matrix * rows + row] = 1.0f / (sqrtf(moment) + kNorMuonEps);
}

// A block has a matrix: its rows' factors, so that its norm is what it was.
__global__ void __launch_bounds__(kThreads)
    keep_norm(const float* squares, float* factors, std::int32_t rows, const UpdateResult* result) {
  __shared__ double parts[kMaxWarps], more_parts[kMaxWarps];
  if (result->finite != 1.0f) return;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows;
  double before = 0, after = 0;
  for (std::int32_t r = static_cast<std::int32_t>(threadIdx.x); r < rows; r += kThreads) {
    const auto square = static_cast<double>(squares[first + r]), factor = static_cast<double>(factors[first + r]);
    before += square;
    after += square * factor * factor;
  }
  before = row_sum(before, parts);
  after = row_sum(after, more_parts);
  const float ratio = after > 0 ? static_cast<float>(sqrt(before / after)) : 0.0f;
  for (std::int32_t r = static_cast<std::int32_t>(threadIdx.x); r < rows; r += kThreads) factors[first + r] *= ratio;
}

struct Step {
  float scale;            // of u, times the learning rate
  MuonSettings settings;  // of decay
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    update(const T* x, const float* factors, float* parameters, bf16* working, Spread flat, std::int32_t rows,
           std::int32_t columns, Step step, const StepState* state, const UpdateResult* result) {
  if (result->finite != 1.0f) return;
  const float scale = state->lr * step.scale,
              decay = state->lr * (step.settings.weight_decay * state->weight_decay_share);
  const std::int64_t at = flat.at(blockIdx.y), matrix = blockIdx.y, elements = std::int64_t{rows} * columns;
  const Part part = part_of_block<kWidth>(elements);
  const auto vectors_of_row = static_cast<std::uint32_t>(columns / kWidth);
#pragma unroll 2
  for (std::int64_t v = part.from + threadIdx.x; v < part.to; v += kThreads) {
    const auto o = load<kWidth>(x + matrix * elements + v * kWidth);
    const auto p = load<kWidth>(parameters + at + v * kWidth);
    const float factor = factors ? factors[matrix * rows + static_cast<std::uint32_t>(v) / vectors_of_row] : 1.0f;
    float out[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float u = factor * o[e];
      const bool decays = !step.settings.cautious || u * p[e] > 0.0f;
      out[e] = p[e] - (decays ? decay * p[e] : 0.0f) - scale * u;
    }
    store(parameters + at + v * kWidth, out);
    if (working) store(working + at + v * kWidth, out);
  }
}

// Whether arrays can be taken eight elements at a time, and rows as well.
bool in_eights(const Matrices& m, std::initializer_list<Tensor> tensors) {
  return in_vectors(8, tensors) && m.columns % 8 == 0 && m.flat.stride % 8 == 0 && m.flat.inner_stride % 8 == 0;
}

dim3 grid_of(const Matrices& m) {
  REDLINE_CHECK(m.elements() <= std::numeric_limits<std::int32_t>::max() && m.count <= 65535,
                "{} matrices of {} x {} elements", m.count, m.rows, m.columns);
  return {static_cast<unsigned>(muon_parts(m.elements())), static_cast<unsigned>(m.count)};
}

// Calls f.operator()<T, kWidth>() for the type of x.
template <class F>
void for_x(const Tensor& x, bool eights, const F& f) {
  REDLINE_CHECK(x.dtype == DType::bf16 || x.dtype == DType::f32, "Muon takes bf16 or f32, not {}", name_of(x.dtype));
  if (x.dtype == DType::bf16)
    eights ? f.template operator()<bf16, 8>() : f.template operator()<bf16, 1>();
  else
    eights ? f.template operator()<float, 8>() : f.template operator()<float, 1>();
}

}  // namespace

void run(const MuonMomentum<Tensor>& op, const device::cuda::Launch& launch) {
  const Matrices& m = op.matrices;
  const auto* const state = op.state.as<StepState>();
  const auto* const result = op.result.as<UpdateResult>();
  for_x(op.x, in_eights(m, {op.gradients, op.momentum, op.x}), [&]<class T, int kWidth>() {
    accumulate<kWidth><<<grid_of(m), kThreads, 0, launch.stream>>>(
        op.gradients.f32(), op.momentum.f32(), op.partial.as<double>(), m.flat, m.elements(), state, result);
    REDLINE_LAUNCHED();
    normalise<T, kWidth><<<grid_of(m), kThreads, 0, launch.stream>>>(op.gradients.f32(), op.momentum.f32(),
                                                                     op.partial.as<double>(), op.x.as<T>(), m.flat,
                                                                     m.elements(), state, result);
    REDLINE_LAUNCHED();
  });
}

void run(const Muon<Tensor>& op, const device::cuda::Launch& launch) {
  REDLINE_CHECK(!op.working.present() || op.working.dtype == DType::bf16, "working copies are bf16, not {}",
                name_of(op.working.dtype));
  const Matrices& m = op.matrices;
  const auto* const state = op.state.as<StepState>();
  const auto* const result = op.result.as<UpdateResult>();
  const auto rows = static_cast<std::int32_t>(m.rows), columns = static_cast<std::int32_t>(m.columns);
  const Step step{kMuonScale * std::sqrt(static_cast<float>(std::max(m.rows, m.columns))), op.settings};
  for_x(op.x, in_eights(m, {op.x, op.parameters, op.working}), [&]<class T, int kWidth>() {
    float* factors = nullptr;
    if (op.row_moments.present()) {
      float* const squares = op.partial.f32();
      factors = squares + m.count * m.rows;
      const dim3 grid(blocks_for(m.rows, kRowsOfBlock), static_cast<unsigned>(m.count));
      row_moments<T, kWidth><<<grid, dim3(kWarp, kRowsOfBlock), 0, launch.stream>>>(
          op.x.as<T>(), op.row_moments.f32(), m.by_row, squares, factors, rows, columns, op.settings.beta2, result);
      REDLINE_LAUNCHED();
      keep_norm<<<static_cast<unsigned>(m.count), kThreads, 0, launch.stream>>>(squares, factors, rows, result);
      REDLINE_LAUNCHED();
    }
    update<T, kWidth><<<grid_of(m), kThreads, 0, launch.stream>>>(
        op.x.as<T>(), factors, op.parameters.f32(), op.working.as<bf16>(), m.flat, rows, columns, step, state, result);
    REDLINE_LAUNCHED();
  });
}

}  // namespace redline::optim::cuda
