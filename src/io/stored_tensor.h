// A tensor as it lies in a file: its type, its shape and its bytes, and their conversion to other types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace redline::io {

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // any rank, as the file says
  std::span<const std::byte> bytes;
  std::int64_t elements() const;
  void to_f32(std::span<float> out) const;  // from f32, f64, bf16 or f16; out.size() == elements()
  // Converts some of its elements, whose bytes are `from`, to f32, bf16 or f16, rounded to nearest even; the same type
  // keeps its bytes. From f32, f64, bf16 or f16. A finite value that `to` cannot hold is a UserError.
  void convert(std::span<const std::byte> from, DType to, std::byte* out) const;
  // Counts NaN and infinity among some of its elements. f32, f64, bf16 or f16.
  std::int64_t not_finite(std::span<const std::byte> some) const;
  std::vector<float> to_f32() const;
  std::vector<std::int32_t> to_i32() const;  // from i32 or i64, range checked
};

}  // namespace redline::io
