// The update on the CPU:  norm = inv_pairs * sqrt(sum g^2);  then, g scaled and clipped,
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr * (wd * p + (m / c1) / (sqrt(v / c2) + eps)).
// The norm's sum is cut into kCutGroups ranges by size alone, each summed in double in eight lanes (one lane would
// wait on its own additions); the update is cut into ranges of kRange elements. Moments that are not floats become
// floats and go back block by block (optim/moments.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/step_state.h"
#include "optim/cpu/kernels.h"
#include "optim/cpu/moment_codes.h"

namespace redline::optim::cpu {
namespace {

constexpr std::int64_t kRange = 16384;

double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  }
  for (std::int64_t j = 0; i + j < n; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

// The factors of one step, the same for every element.
struct Factors {
  float beta1, beta2, eps, decay, scale, lr, correction1, correction2;
};

void update(float* p, const float* gradient, float* m, float* v, std::int64_t n, const Factors& f) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = f.scale * gradient[i];
    m[i] = f.beta1 * m[i] + (1.0f - f.beta1) * g;
    v[i] = f.beta2 * v[i] + (1.0f - f.beta2) * (g * g);
    const float step = (m[i] / f.correction1) / (std::sqrt(v[i] / f.correction2) + f.eps);
    p[i] = p[i] - f.lr * f.decay * p[i] - f.lr * step;
  }
}

// How moments lie in memory. update() has a step move elements [first, first + count) of the arrays: it is given their
// moments as floats, and what it leaves there is kept.
struct Floats {
  float *m, *v;
  template <class Step>
  void update(std::int64_t first, std::int64_t count, const Step& step) const {
    step(first, count, m + first, v + first);
  }
};

// The others: those of a block of the flat layout at a time, on the stack. `begin`: where the arrays stand in it.
template <class Kept, class Step>
void update_blocks(const Kept& kept, std::int64_t begin, std::int64_t first, std::int64_t count, const Step& step) {
  float m[kCutBlock], v[kCutBlock];
  for (const std::int64_t end = first + count; first < end;) {
    const std::int64_t here = std::min(end - first, kCutBlock - (begin + first) % kCutBlock);
    kept.load(first, here, m, v);
    step(first, here, m, v);
    kept.store(first, here, m, v);
    first += here;
  }
}

struct RandomBf16 {
  std::uint16_t *m, *v;
  std::int64_t begin;
  Random random;

  void load(std::int64_t first, std::int64_t count, float* m_out, float* v_out) const {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      m_out[i] = f32_from_bf16(m[first + i]);
      v_out[i] = f32_from_bf16(v[first + i]);
    }
  }
  void store(std::int64_t first, std::int64_t count, const float* m_in, const float* v_in) const {
    std::array<std::uint32_t, kRoundedAtOnce> words{};
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = begin + first + i, word = place % kRoundedAtOnce;
      if (i == 0 || word == 0) words = random.words(static_cast<std::uint64_t>(place / kRoundedAtOnce));
      m[first + i] = bf16_at_random(m_in[i], first_bits(words[static_cast<std::size_t>(word)]));
      v[first + i] = bf16_at_random(v_in[i], second_bits(words[static_cast<std::size_t>(word)]));
    }
  }
  template <class Step>
  void update(std::int64_t first, std::int64_t count, const Step& step) const {
    update_blocks(*this, begin, first, count, step);
  }
};

struct Codes {
  std::uint8_t *m, *v;
  float *m_scales, *v_scales;
  std::int64_t begin;

  std::int64_t block_of(std::int64_t element) const { return (begin + element) / kCutBlock - begin / kCutBlock; }

  void load(std::int64_t first, std::int64_t count, float* m_out, float* v_out) const {
    decode_moments(kSignedMap, m + first, count, m_scales[block_of(first)], m_out);
    decode_moments(kUnsignedMap, v + first, count, v_scales[block_of(first)], v_out);
  }
  void store(std::int64_t first, std::int64_t count, const float* m_in, const float* v_in) const {
    m_scales[block_of(first)] = encode_first_moments(m_in, count, m + first);
    v_scales[block_of(first)] = encode_second_moments(v_in, count, v + first);
  }
  template <class Step>
  void update(std::int64_t first, std::int64_t count, const Step& step) const {
    update_blocks(*this, begin, first, count, step);
  }
};

// Cut at multiples of kRange from the block on that the arrays begin in: no block is cut.
template <class Moments>
void update_all(const AdamW<Tensor>& op, const Moments& moments, const Factors& factors, ThreadPool& pool) {
  const auto step = [&](std::int64_t first, std::int64_t count, float* m, float* v) {
    update(op.parameters.f32() + first, op.gradients.f32() + first, m, v, count, factors);
  };
  const std::int64_t n = op.parameters.elements(), before = op.begin % kCutBlock;
  const auto update_range = [&](std::int64_t range) {
    const std::int64_t begin = std::max<std::int64_t>(range * kRange - before, 0),
                       count = std::min(n, (range + 1) * kRange - before) - begin;
    moments.update(begin, count, step);
    if (op.working.present()) std::copy_n(op.parameters.f32() + begin, count, op.working.f32() + begin);
  };
  pool.run((before + n + kRange - 1) / kRange, std::cref(update_range));
}

void check_working(const Tensor& working) {
  REDLINE_CHECK(!working.present() || working.dtype == DType::f32, "working copies on the CPU are fp32, not {}",
                name_of(working.dtype));
}

}  // namespace

void run(const SumSquares<Tensor>& op, ThreadPool& pool) {
  double* totals = op.totals.as<double>();
  const std::int64_t end = op.begin + op.gradients.elements();
  const auto sum_group = [&](std::int64_t g) {
    const std::int64_t from = std::max(group_begin(g, op.all), op.begin),
                       to = std::min(group_begin(g + 1, op.all), end);
    totals[g] = from < to ? sum_of_squares(op.gradients.f32() + (from - op.begin), to - from) : 0.0;
  };
  pool.run(kCutGroups, std::cref(sum_group));  // a reference: std::function then allocates nothing
  const StepState* const state = op.state.as<StepState>();
  totals[kLossTotal] = op.loss_sum.present() ? *op.loss_sum.as<double>() : 0.0;
  *reinterpret_cast<StepCounts*>(totals + kCountTotals) = state ? state->counts : StepCounts{.pairs = 1};
}

void run(const GradNorm<Tensor>& op, ThreadPool&) {
  const double* const totals = op.totals.as<double>();
  double sum = 0;
  for (std::int64_t g = 0; g < kCutGroups; ++g) sum += totals[g];
  UpdateResult result;
  result.loss_sum = totals[kLossTotal];
  result.counts = *reinterpret_cast<const StepCounts*>(totals + kCountTotals);
  const double inv_pairs =
      result.counts.pairs == 0 ? 0.0 : static_cast<double>(static_cast<float>(1.0 / result.counts.pairs));
  const double norm = inv_pairs * std::sqrt(sum);
  result.grad_norm = static_cast<float>(norm);
  bool finite = std::isfinite(result.grad_norm) && std::isfinite(result.loss_sum);
  if (op.usual.present()) {
    UsualNorm& usual = *op.usual.as<UsualNorm>();
    if (usual.count >= kUsualLeast)
      result.limit = static_cast<float>(static_cast<double>(op.spike) * std::exp(static_cast<double>(usual.mean_log)));
    finite = finite && (result.limit == 0.0f || result.grad_norm <= result.limit);
    if (finite && result.grad_norm > 0.0f) {
      usual.count = std::min(usual.count + 1.0f, kUsualMost);
      usual.mean_log += (std::log(result.grad_norm) - usual.mean_log) / usual.count;
    }
  }
  result.finite = finite ? 1.0f : 0.0f;
  const double clipped = op.clip > 0 ? std::min(1.0, static_cast<double>(op.clip) / (norm + 1e-6)) : 1.0;
  result.grad_scale = finite ? static_cast<float>(inv_pairs * clipped) : 0.0f;
  *op.result.as<UpdateResult>() = result;
}

void run(const AdamW<Tensor>& op, ThreadPool& pool) {
  check_working(op.working);
  const StepState& state = *op.state.as<StepState>();
  const UpdateResult& result = *op.result.as<UpdateResult>();
  if (result.finite != 1.0f) {  // working copies are written whatever happened
    if (op.working.present()) std::copy_n(op.parameters.f32(), op.parameters.elements(), op.working.f32());
    return;
  }
  const AdamWSettings& s = op.settings;
  const Factors factors{s.beta1,
                        s.beta2,
                        s.eps,
                        s.weight_decay * state.weight_decay_share,
                        result.grad_scale,
                        state.lr,
                        state.correction1,
                        state.correction2};
  switch (op.moment1.dtype) {
    case DType::f32: return update_all(op, Floats{op.moment1.f32(), op.moment2.f32()}, factors, pool);
    case DType::bf16:
      return update_all(op,
                        RandomBf16{op.moment1.as<std::uint16_t>(), op.moment2.as<std::uint16_t>(), op.begin,
                                   Random(state.seed, kMomentStreams + state.step)},
                        factors, pool);
    case DType::u8:
      return update_all(op,
                        Codes{op.moment1.as<std::uint8_t>(), op.moment2.as<std::uint8_t>(), op.scales1.f32(),
                              op.scales2.f32(), op.begin},
                        factors, pool);
    default: REDLINE_CHECK(false, "moments are f32, bf16 or u8, not {}", name_of(op.moment1.dtype));
  }
}

void run(const Refresh<Tensor>& op, ThreadPool&) {
  check_working(op.working);
  std::copy_n(op.parameters.f32(), op.parameters.elements(), op.working.f32());
}

}  // namespace redline::optim::cpu
