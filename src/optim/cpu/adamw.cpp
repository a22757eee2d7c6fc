// AdamW on the CPU, g scaled and clipped:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  p -= lr * (wd * p + (m / c1) / (sqrt(v / c2) + eps)).
// The update, and the average of the weights with its exchange, are cut into ranges of kRange elements. Moments that
// are not floats become floats and go back block by block (optim/moments.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/step_state.h"
#include "optim/cpu/kernels.h"

namespace redline::optim::cpu {
namespace {

constexpr std::int64_t kRange = 16384;

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

// Calls body(first, count) for every range.
template <class Body>
void for_ranges(std::int64_t n, ThreadPool& pool, const Body& body) {
  const auto task = [&](std::int64_t range) { body(range * kRange, std::min(n - range * kRange, kRange)); };
  pool.run((n + kRange - 1) / kRange, std::cref(task));
}

float scale_of(const float* moments, std::int64_t count) {
  float largest = 0;
#pragma omp simd reduction(max : largest)
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(moments[i]));
  return scale_of_block(largest);
}

}  // namespace

// A block's largest magnitude, then its moments in units of it, then their codes: three loops, so that no product is
// contracted with the difference that it goes into.
void decode_moments(const DynamicMap& map, const std::uint8_t* codes, std::int64_t count, float scale, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = map.values[codes[i]] * scale;
}

float encode_first_moments(const float* moments, std::int64_t count, std::uint8_t* codes) {
  const float scale = scale_of(moments, count), inverse = inverse_of(scale);
  float scaled[kCutBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = moments[i] * inverse;
  for (std::int64_t i = 0; i < count; ++i) codes[i] = signed_code(scaled[i], kSignedMap);
  return scale;
}

float encode_second_moments(const float* moments, std::int64_t count, std::uint8_t* codes) {
  const float scale = scale_of(moments, count), inverse = inverse_of(scale);
  float scaled[kCutBlock];
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = above_zero(moments[i] * inverse, moments[i]);
  for (std::int64_t i = 0; i < count; ++i) codes[i] = unsigned_code(scaled[i], kUnsignedMap);
  return scale;
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

void run(const Average<Tensor>& op, ThreadPool& pool) {
  if (op.result.as<UpdateResult>()->finite != 1.0f) return;
  const float share = op.state.as<StepState>()->average;
  for_ranges(op.average.elements(), pool, [&](std::int64_t first, std::int64_t count) {
    const float* const p = op.parameters.f32() + first;
    float* const average = op.average.f32() + first;
    if (share == 1.0f) {
      std::copy_n(p, count, average);
      return;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) average[i] = average[i] + share * (p[i] - average[i]);
  });
}

void run(const Exchange<Tensor>& op, ThreadPool& pool) {
  for_ranges(op.average.elements(), pool, [&](std::int64_t first, std::int64_t count) {
    float* const p = op.parameters.f32() + first;
    std::swap_ranges(p, p + count, op.average.f32() + first);
  });
}

}  // namespace redline::optim::cpu
