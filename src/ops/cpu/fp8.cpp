// Casts to eight bits as cards make them, their scales, and products of them. The truth for the casts is
// base/small_floats.h; here values are what bf16 keeps of them, as on a card. A product's operands are taken back to
// fp32, which is exact, and the work is gemm's.
#include <algorithm>
#include <cmath>

#include "base/small_floats.h"
#include "base/step_state.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/row_ranges.h"

namespace redline::ops::cpu {
namespace {

constexpr std::int64_t kTile = 64;  // rows and columns that are turned over at a time

// The largest magnitude; NaN where one is.
float largest(const float* x, std::int64_t n, ThreadPool& pool) {
  constexpr std::int64_t kParts = 64;
  float parts[kParts] = {};
  run_tasks(pool, kParts, [&](std::int64_t part) {
    float most = 0;
    bool ordered = true;
    for (std::int64_t i = part * n / kParts; i < (part + 1) * n / kParts; ++i) {
      const float magnitude = std::abs(x[i]);
      ordered = ordered && magnitude == magnitude;
      most = std::max(most, magnitude);
    }
    parts[part] = ordered ? most : NAN;
  });
  float most = 0;
  for (const float part : parts) most = part == part ? std::max(most, part) : part;
  return most;
}

// The same of what bf16 keeps.
float largest_bf16(const float* x, std::int64_t n, ThreadPool& pool) {
  return f32_from_bf16(bf16_from_f32(largest(x, n, pool)));
}

void record(const Tensor& record, const float* x, std::int64_t n, ThreadPool& pool) {
  float& amax = *record.f32();
  const float most = largest_bf16(x, n, pool);
  amax = most == most && amax == amax ? std::max(amax, most) : NAN;
}

// byte(row, column) to rows [n, d] and to columns [d, n], whichever is there, or to columns in blocks.
template <class Byte>
void write_copies(const Tensor& rows, const Tensor& columns, std::int64_t n, std::int64_t d, ThreadPool& pool,
                  const Byte& byte) {
  const bool blocks = columns.shape.rank() == 3;
  const std::int64_t all = blocks ? columns.shape[0] * kColumnBlock : n;
  run_tasks(pool, (all + kTile - 1) / kTile, [&](std::int64_t tile) {
    const std::int64_t end = std::min(all, (tile + 1) * kTile);
    for (std::int64_t left = 0; left < d; left += kTile) {
      const std::int64_t right = std::min(d, left + kTile);
      for (std::int64_t i = tile * kTile; i < end; ++i) {
        for (std::int64_t j = left; j < right; ++j) {
          const std::uint8_t b = i < n ? byte(i, j) : std::uint8_t{0};
          if (rows.present() && i < n) rows.as<std::uint8_t>()[i * d + j] = b;
          const std::int64_t at = blocks ? (i / kColumnBlock * d + j) * kColumnBlock + i % kColumnBlock : j * n + i;
          if (columns.present()) columns.as<std::uint8_t>()[at] = b;
        }
      }
    }
  });
}

// One of several matrices, or the one that there is; an absent tensor stays absent.
std::int64_t many_matrices(const Tensor& t) { return t.shape.rank() == 3 ? t.shape[0] : 1; }
Tensor one_matrix(const Tensor& t, std::int64_t index) {
  if (!t.present() || t.shape.rank() != 3) return t;
  const std::int64_t bytes = t.bytes() / t.shape[0];
  return {t.as<std::byte>() + index * bytes, t.dtype, {t.shape[1], t.shape[2]}};
}

void set_scale(Fp8Scale& s, float amax, float target) {
  const float scale = scale_for(amax, target);
  s = {.inverse = 1.0f / scale, .scale = scale, .next = 0, .amax = amax, .history = {}};
}

}  // namespace

void cast(const Tensor& x, const Tensor& rows, const Tensor& columns, float scale, ThreadPool& pool) {
  const std::int64_t n = x.rows(), d = x.columns();
  const Fp8Format& format = fp8_format(rows.present() ? rows.dtype : columns.dtype);
  write_copies(rows, columns, n, d, pool, [&](std::int64_t i, std::int64_t j) {
    return fp8_from_f32(f32_from_bf16(bf16_from_f32(x.f32()[i * d + j])) * scale, format);
  });
}

std::vector<float> numbers_of(const Tensor& t, ThreadPool& pool) {
  static constexpr auto kOfE4m3 = fp8_numbers(kE4m3), kOfE5m2 = fp8_numbers(kE5m2);
  const auto& numbers = t.dtype == DType::e5m2 ? kOfE5m2 : kOfE4m3;
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  for_rows(pool, t.rows(), t.columns(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * t.columns(); i < end * t.columns(); ++i)
      values[static_cast<std::size_t>(i)] = numbers[t.as<std::uint8_t>()[i]];
  });
  return values;
}

void run(const Quantize<Tensor>& op, ThreadPool& pool) {
  REDLINE_CHECK(is_fp8(op.x.dtype) ? !op.to.rows.present() : op.x.shape.rank() == 2, "no cast of {} {}",
                name_of(op.x.dtype), op.x.shape.str());
  if (is_fp8(op.x.dtype)) {
    for (std::int64_t i = 0; i < many_matrices(op.x); ++i) {
      const Tensor x = one_matrix(op.x, i), to = op.x.shape.rank() == 3 ? one_matrix(op.to.columns, i) : op.to.columns;
      const std::int64_t d = x.columns();
      write_copies({}, to, x.rows(), d, pool,
                   [&](std::int64_t row, std::int64_t column) { return x.as<std::uint8_t>()[row * d + column]; });
    }
    return;
  }
  cast(op.x, op.to.rows, op.to.columns, op.to.scale.as<Fp8Scale>()->scale, pool);
  if (op.to.amax.present()) record(op.to.amax, op.x.f32(), op.x.elements(), pool);
}

void run(const QuantizeWeight<Tensor>& op, ThreadPool& pool) {
  const float target = fp8_format(op.rows.present() ? op.rows.dtype : op.columns.dtype).largest;
  for (std::int64_t i = 0; i < many_matrices(op.weight); ++i) {
    const Tensor weight = one_matrix(op.weight, i);
    Fp8Scale& scale = op.scale.as<Fp8Scale>()[i];
    set_scale(scale, largest_bf16(weight.f32(), weight.elements(), pool), target);
    cast(weight, one_matrix(op.rows, i), one_matrix(op.columns, i), scale.scale, pool);
  }
}

void run(const BoundScale<Tensor>& op, ThreadPool& pool) {
  const float* weight = norm_weight(op.weight, op.one_plus);
  const float most = largest_bf16(weight, op.weight.elements(), pool);
  set_scale(*op.scale.as<Fp8Scale>(), std::sqrt(static_cast<float>(op.weight.elements())) * most, kE4m3.largest);
}

void run(const MoveScales<Tensor>& op, ThreadPool&) {
  const bool made = !op.result.present() || op.result.as<UpdateResult>()->finite == 1.0f;
  auto* const scales = op.scales.as<Fp8Scale>();
  for (std::int64_t i = 0; i < op.amax.elements(); ++i) {
    if (made) move(scales[i], op.amax.f32()[i], op.target);
    op.amax.f32()[i] = 0;
  }
}

void run(const Largest<Tensor>& op, ThreadPool& pool) {
  record(op.amax, norm_weight(op.weight, op.one_plus), op.weight.elements(), pool);
}

void run(const SetScales<Tensor>& op, ThreadPool&) {
  for (std::int64_t i = 0; i < op.amax.elements(); ++i) {
    set_scale(op.scales.as<Fp8Scale>()[i], op.factor * op.amax.f32()[i], op.target);
    op.amax.f32()[i] = 0;
  }
}

void run(const Fp8Product<Tensor>& op, ThreadPool& pool) {
  const std::vector<float> a = numbers_of(op.a, pool), b = numbers_of(op.b, pool);
  const std::int64_t rows = op.a.rows(), columns = op.b.rows(), k = op.a.columns();
  const float scale = op.a_scale.as<Fp8Scale>()->inverse * op.b_scale.as<Fp8Scale>()->inverse;
  gemm(product({a.data(), rows, k, k}, turned({b.data(), columns, k, k}), op.c.f32(), columns, scale,
               op.accumulate ? 1.0f : 0.0f),
       pool);
  add_bias(op.bias, op.c, pool);
}

void run(const CountFp8<Tensor>& op, ThreadPool& pool) {
  constexpr std::int64_t kParts = 64;
  const unsigned most = fp8_format(op.copy.dtype).largest_bits;
  const std::int64_t n = op.copy.elements();
  Fp8Count parts[kParts];
  run_tasks(pool, kParts, [&](std::int64_t part) {
    Fp8Count seen;
    for (std::int64_t i = part * n / kParts; i < (part + 1) * n / kParts; ++i) {
      const unsigned magnitude = op.copy.as<std::uint8_t>()[i] & 0x7Fu;
      seen.add({magnitude == most, magnitude == 0, magnitude > most, magnitude});
    }
    parts[part] = seen;
  });
  for (const Fp8Count& part : parts) op.count.as<Fp8Count>()->add(part);
}

}  // namespace redline::ops::cpu
