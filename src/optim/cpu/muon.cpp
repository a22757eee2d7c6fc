// Muon on the CPU, matrix by matrix: parts and rows spread over the pool, sums in double and in a fixed order.
#include <cmath>
#include <functional>

#include "base/step_state.h"
#include "optim/cpu/kernels.h"

namespace redline::optim::cpu {
namespace {

constexpr std::int64_t kTaskElements = 16384;

// Runs body(begin, end) over ranges of a matrix's rows.
template <class Body>
void for_rows(const Matrices& m, ThreadPool& pool, const Body& body) {
  pool.for_ranges(m.rows, std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, m.columns)), body);
}

// NorMuon: what the rows of a matrix are multiplied by. `squares` and `factors` have an element a row.
void row_factors(const Matrices& m, const float* x, float* moments, float* squares, float* factors, float beta2,
                 ThreadPool& pool) {
  for_rows(m, pool, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      double sum = 0;
      for (std::int64_t j = 0; j < m.columns; ++j) {
        const auto value = static_cast<double>(x[r * m.columns + j]);
        sum += value * value;
      }
      squares[r] = static_cast<float>(sum / static_cast<double>(m.columns));
      moments[r] = beta2 * moments[r] + (1.0f - beta2) * squares[r];
      factors[r] = 1.0f / (std::sqrt(moments[r]) + kNorMuonEps);
    }
  });
  double before = 0, after = 0;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const auto square = static_cast<double>(squares[r]), factor = static_cast<double>(factors[r]);
    before += square;
    after += square * factor * factor;
  }
  const float ratio = after > 0 ? static_cast<float>(std::sqrt(before / after)) : 0.0f;
  for (std::int64_t r = 0; r < m.rows; ++r) factors[r] *= ratio;
}

}  // namespace

void run(const MuonMomentum<Tensor>& op, ThreadPool& pool) {
  const Matrices& m = op.matrices;
  const std::int64_t n = m.elements(), parts = muon_parts(n);
  const UpdateResult& result = *op.result.as<UpdateResult>();
  if (result.finite != 1.0f) {
    std::fill_n(op.x.f32(), op.x.elements(), 0.0f);
    return;
  }
  const float mu = op.state.as<StepState>()->momentum, scale = result.grad_scale;
  double* const partial = op.partial.as<double>();
  const auto from = [&](std::int64_t part) { return part * n / parts; };
  const auto accumulate = [&](std::int64_t task) {
    const std::int64_t matrix = task / parts, part = task % parts, at = m.flat.at(matrix);
    const float* const g = op.gradients.f32() + at;
    float* const momentum = op.momentum.f32() + at;
    double sum = 0;
    for (std::int64_t i = from(part); i < from(part + 1); ++i) {
      momentum[i] = mu * momentum[i] + scale * g[i];
      const auto u = static_cast<double>(scale * g[i] + mu * momentum[i]);
      sum += u * u;
    }
    partial[task] = sum;
  };
  pool.run(m.count * parts, std::cref(accumulate));
  const auto normalise = [&](std::int64_t task) {
    const std::int64_t matrix = task / parts, part = task % parts, at = m.flat.at(matrix);
    double sum = 0;
    for (std::int64_t p = 0; p < parts; ++p) sum += partial[matrix * parts + p];
    const auto factor = static_cast<float>(1.0 / (1.02 * std::sqrt(sum) + 1e-30));
    const float *const g = op.gradients.f32() + at, *const momentum = op.momentum.f32() + at;
    float* const x = op.x.f32() + matrix * n;
    for (std::int64_t i = from(part); i < from(part + 1); ++i) x[i] = (scale * g[i] + mu * momentum[i]) * factor;
  };
  pool.run(m.count * parts, std::cref(normalise));
}

void run(const Muon<Tensor>& op, ThreadPool& pool) {
  if (op.result.as<UpdateResult>()->finite != 1.0f) return;
  const Matrices& m = op.matrices;
  const StepState& state = *op.state.as<StepState>();
  const float step = state.lr * kMuonScale * std::sqrt(static_cast<float>(std::max(m.rows, m.columns)));
  const float decay = state.lr * (op.settings.weight_decay * state.weight_decay_share);
  for (std::int64_t i = 0; i < m.count; ++i) {
    const float* const x = op.x.f32() + i * m.elements();
    float* const p = op.parameters.f32() + m.flat.at(i);
    float* const working = op.working.present() ? op.working.f32() + m.flat.at(i) : nullptr;
    float* factors = nullptr;
    if (op.row_moments.present()) {
      float* const squares = op.partial.f32() + i * m.rows;
      factors = squares + m.count * m.rows;
      row_factors(m, x, op.row_moments.f32() + m.by_row.at(i), squares, factors, op.settings.beta2, pool);
    }
    for_rows(m, pool, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float factor = factors ? factors[r] : 1.0f;
        for (std::int64_t j = r * m.columns; j < (r + 1) * m.columns; ++j) {
          const float u = factor * x[j];
          const bool decays = !op.settings.cautious || u * p[j] > 0.0f;
          p[j] = p[j] - (decays ? decay * p[j] : 0.0f) - step * u;
          if (working) working[j] = p[j];
        }
      }
    });
  }
}

}  // namespace redline::optim::cpu
