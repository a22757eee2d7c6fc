// The element types of values, files and kernels, and their sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace redline {

// e4m3 and e5m2 are the 8-bit floats that matrix products take (base/small_floats.h).
enum class DType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8, u16, u32, e4m3, e5m2 };

constexpr std::size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16: return 2;
    case DType::u8:
    case DType::e4m3:
    case DType::e5m2: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::u16: return "u16";
    case DType::u32: return "u32";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
  }
  return "?";
}

constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }

inline constexpr std::int64_t kAlignment = 256;  // bytes, of every value that owns its memory, on any device

constexpr std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class Number>
constexpr double gib(Number bytes) {
  return static_cast<double>(bytes) * 0x1p-30;
}

}  // namespace redline
