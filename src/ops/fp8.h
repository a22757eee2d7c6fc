// Tensors in eight bits, for products at twice the rate. A tensor x has one scale, a power of two: what is kept is
// cast(bf16(x) * scale), rounded to nearest even and saturating (base/small_floats.h), and products multiply by one
// over it. Only the range matters: a cast's error is that of three or two bits whatever the scale, as long as values
// are above the smallest numbers. Scales live in device memory and change in the update only; they are found in one of
// three ways:
//   weights          current: from the largest of the tensor itself, each time it is cast
//   outputs of norms bounded: |y| <= sqrt(d) max|w|, so from the norm's weights
//   all others       delayed: from the largest of the last kAmaxHistory steps, with headroom
// Where ranks have parts of weights, each records the largest of its part, and scales follow from the largest of all
// (Largest, SetScales). Products take their operands by rows of what is summed over: x and weight as they lie for
// y = x W^T, but W, dy and x turned over for the gradients. Whoever casts writes either form or both.
//   Columns of experts' rows (ops/grouped.h) lie in blocks: the columns of the first kColumnBlock rows, then those
// of the next, [blocks, d, kColumnBlock]. A product over some rows of many columns reads one piece of memory so, where
// whole columns are as far apart as there are rows.
#pragma once

#include <bit>
#include <limits>

#include "base/tensor.h"
#include "ops/how.h"

namespace redline::ops {

inline constexpr int kAmaxHistory = 16;
inline constexpr std::int64_t kFp8Multiple = 16;  // that products of them ask of every extent
inline constexpr std::int64_t kColumnBlock = 128;
inline Shape columns_in_blocks(std::int64_t n, std::int64_t d) {
  return {(n + kColumnBlock - 1) / kColumnBlock, d, kColumnBlock};
}

// A tensor's entry among the scales: floats, since checkpoints hold them as such. A library reads `inverse` where it
// is, aligned to 16 bytes, as all its operands.
struct Fp8Scale {
  float inverse;                // products are multiplied by it
  float scale;                  // values are
  float next;                   // where in the history the next step's goes
  float amax;                   // the largest magnitude in the last step that had one
  float history[kAmaxHistory];  // of steps
};
inline constexpr std::int64_t kScaleFloats = sizeof(Fp8Scale) / sizeof(float);
static_assert(sizeof(Fp8Scale) % 16 == 0);

// The copies in eight bits that an op writes of a result, beside the result or instead of it.
template <class T>
struct Fp8Copies {
  T rows{};     // [n, d]  =  or absent; e4m3 or e5m2, as are the columns
  T columns{};  // [d, n]  =  or absent, or in blocks; the last one's rows after n are 0
  T scale{};    // Fp8Scale
  T amax{};     // [1]  the larger of it and every |x|: the update takes it. Absent: nothing is recorded

  bool present() const { return rows.present() || columns.present(); }
  template <class F>
  auto map(F f) const {
    using U = decltype(f("", rows, Access::read));
    return Fp8Copies<U>{f("fp8 rows", rows, Access::write), f("fp8 columns", columns, Access::write),
                        f("fp8 scale", scale, Access::read), f("fp8 amax", amax, Access::update)};
  }
};

// Casts the result of another op. Of a tensor in fp8 it can only make the columns: it transposes the codes. Of several
// matrices, [groups, n, d], each is turned over for itself.
template <class T>
struct Quantize {
  static constexpr std::string_view kName = "quantize";
  static constexpr Again kAgain = Again::as_its_input;
  T x;  // [n, d]
  Fp8Copies<T> to;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", x, Access::read));
    return Quantize<U>{f("x", x, Access::read), to.map(f)};
  }
};

// Weights, with a scale of their own largest magnitude: scale = 2^floor(log2(largest of the format / max|w|)). Several
// matrices, [groups, m, k], have a scale each.
template <class T>
struct QuantizeWeight {
  static constexpr std::string_view kName = "quantize_weight";
  T weight;   // [m, k]
  T rows;     // [m, k]  =  or absent
  T columns;  // [k, m]  =  or absent
  T scale;    // Fp8Scale, or [groups] of them

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return QuantizeWeight<U>{f("weight", weight, Access::read), f("fp8 rows", rows, Access::write),
                             f("fp8 columns", columns, Access::write), f("fp8 scale", scale, Access::update)};
  }
};

// The scale of a norm's output in e4m3, from the norm's weights: 2^floor(log2(448 / (sqrt(d) max|w|))); with one_plus
// they count as 1 + w.
template <class T>
struct BoundScale {
  static constexpr std::string_view kName = "bound_scale";
  T weight;  // [d]
  T scale;   // Fp8Scale  =
  bool one_plus{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return BoundScale<U>{f("weight", weight, Access::read), f("fp8 scale", scale, Access::write), one_plus};
  }
};

// Delayed scales, once a step: the recorded magnitude goes into the history, and scale = 2^floor(log2(target / its
// largest)), where target is the largest number of the format over the headroom. Where the update was not made (result
// says so) nothing changes; nothing recorded, or something not finite, leaves an entry as it is. The record starts
// again from 0.
template <class T>
struct MoveScales {
  static constexpr std::string_view kName = "move_scales";
  T scales;  // [entries, kScaleFloats]
  T amax;    // [entries]
  T result;  // UpdateResult, or absent: as though it had been made
  float target{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", scales, Access::read));
    return MoveScales<U>{f("scales", scales, Access::update), f("amax", amax, Access::update),
                         f("result", result, Access::read), target};
  }
};

// The larger of a record and every |w| of a part of weights, or every |1 + w|.
template <class T>
struct Largest {
  static constexpr std::string_view kName = "largest";
  T weight;  // [n, d]
  T amax;    // [1]
  bool one_plus{};

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", weight, Access::read));
    return Largest<U>{f("weight", weight, Access::read), f("amax", amax, Access::update), one_plus};
  }
};

// Current scales of what was recorded: scale = 2^floor(log2(target / (factor * record))), as QuantizeWeight and
// BoundScale find it, whose factor is sqrt(d). The record starts again from 0.
template <class T>
struct SetScales {
  static constexpr std::string_view kName = "set_scales";
  T scales;  // [entries, kScaleFloats]  =
  T amax;    // [entries]
  float target{};
  float factor = 1;

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", scales, Access::read));
    return SetScales<U>{f("scales", scales, Access::write), f("amax", amax, Access::update), target, factor};
  }
};

// C (+)= A B^T / (scale of A * scale of B), summed in fp32; plus a bias for every row where there is one.
template <class T>
struct Fp8Product {
  static constexpr std::string_view kName = "fp8_product";
  T a;        // [m, k]  e4m3 or e5m2
  T b;        // [n, k]  e4m3 or e5m2, but not both e5m2
  T a_scale;  // Fp8Scale
  T b_scale;  // Fp8Scale
  T c;        // [m, n]  = or +=
  bool accumulate{};
  T workspace{};
  ProductHow how{};
  T bias{};  // [n] or absent; of the type of c

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", a, Access::read));
    return Fp8Product<U>{f("a", a, Access::read),
                         f("b", b, Access::read),
                         f("a_scale", a_scale, Access::read),
                         f("b_scale", b_scale, Access::read),
                         f("c", c, written_or_added(accumulate)),
                         accumulate,
                         f("workspace", workspace, Access::write),
                         how,
                         f("bias", bias, Access::read)};
  }
  double flops() const { return 2.0 * static_cast<double>(a.rows()) * static_cast<double>(b.elements()); }
};

// The scale that brings `largest` to `target` or below it, at most by half; 1 where there is nothing to go by.
constexpr float scale_for(float largest, float target) {
  constexpr float kLeast = 0x1p-60f, kMost = 0x1p60f;  // so that inverses, and products of two, are normal numbers
  if (!(largest > 0.0f)) return 1.0f;
  const float ratio = target / largest;
  if (!(ratio > kLeast)) return kLeast;
  if (ratio > kMost) return kMost;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(ratio) & 0xFF800000u);
}

// One entry's step: see MoveScales. An entry that has never had a scale gets 1.
constexpr void move(Fp8Scale& s, float amax, float target) {
  if (s.scale == 0.0f) s.scale = s.inverse = 1.0f;
  if (!(amax > 0.0f && amax <= std::numeric_limits<float>::max())) return;
  const int at = static_cast<int>(s.next);
  s.history[at] = s.amax = amax;
  s.next = static_cast<float>((at + 1) % kAmaxHistory);
  float most = 0;
  for (const float past : s.history) most = past > most ? past : most;
  s.scale = scale_for(most, target);
  s.inverse = 1.0f / s.scale;
}

// Counts of the values of a copy in eight bits, for people to look at. It is no node of a program: a step without a
// look has no count. A zero and a value too small for its scale have the same code and count alike, and so do the
// largest number and all beyond it.
struct Fp8Count {
  std::uint64_t saturated = 0;  // codes of the largest number, of either sign
  std::uint64_t zeros = 0;
  std::uint64_t not_finite = 0;
  std::uint64_t largest = 0;  // magnitude as a code: 0 to 0x7F

  void add(const Fp8Count& other) {
    saturated += other.saturated;
    zeros += other.zeros;
    not_finite += other.not_finite;
    largest = largest > other.largest ? largest : other.largest;
  }
};

template <class T>
struct CountFp8 {
  static constexpr std::string_view kName = "count_fp8";
  T copy;   // any shape of a multiple of 16 elements, e4m3 or e5m2
  T count;  // Fp8Count  +=

  template <class F>
  auto map(F f) const {
    using U = decltype(f("", copy, Access::read));
    return CountFp8<U>{f("copy", copy, Access::read), f("count", count, Access::update)};
  }
};

}  // namespace redline::ops
