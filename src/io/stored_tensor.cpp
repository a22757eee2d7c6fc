// What a stored tensor holds, converted to the types we compute in. Data in a file may stand at any byte, so elements
// are copied out rather than pointed at.
#include <bit>
#include <cstring>
#include <limits>

#include "io/json.h"
#include "io/safetensors.h"

namespace redline::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  std::uint32_t wide;
  if (magnitude >= 0x7c00u) {  // infinity and NaN keep their payload
    wide = 0x7f800000u | (magnitude & 0x3ffu) << 13;
  } else if (magnitude >= 0x0400u) {
    wide = (magnitude << 13) + (std::uint32_t{127 - 15} << 23);
  } else {  // zero and subnormals: exact in f32, whose exponents go much lower
    wide = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return std::bit_cast<float>(sign | wide);
}

template <class From, class Convert, class To>
void convert_all(std::span<const std::byte> bytes, std::span<To> out, const Convert& convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = convert(value);
  }
}

}  // namespace

std::int64_t StoredTensor::elements() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }

void StoredTensor::to_f32(std::span<float> out) const {
  REDLINE_CHECK(static_cast<std::int64_t>(out.size()) == elements(), "tensor {} has {} elements, not {}", name,
                elements(), out.size());
  switch (dtype) {
    case DType::f32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case DType::f64: return convert_all<double>(bytes, out, [](double x) { return static_cast<float>(x); });
    case DType::bf16: return convert_all<std::uint16_t>(bytes, out, f32_from_bf16);
    case DType::f16: return convert_all<std::uint16_t>(bytes, out, f32_from_f16);
    default: fail_user("tensor {} has dtype {}; a float type is needed here", in_quotes(name), name_of(dtype));
  }
}

std::vector<float> StoredTensor::to_f32() const {
  std::vector<float> out(static_cast<std::size_t>(elements()));
  to_f32(out);
  return out;
}

std::vector<std::int32_t> StoredTensor::to_i32() const {
  std::vector<std::int32_t> out(static_cast<std::size_t>(elements()));
  switch (dtype) {
    case DType::i32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return out;
    case DType::i64:
      convert_all<std::int64_t>(bytes, std::span(out), [&](std::int64_t x) {
        using Limits = std::numeric_limits<std::int32_t>;
        if (x < Limits::min() || x > Limits::max())
          fail_user("tensor {} holds {}, which does not fit in 32 bits", in_quotes(name), x);
        return static_cast<std::int32_t>(x);
      });
      return out;
    default: fail_user("tensor {} has dtype {}; I32 or I64 is needed here", in_quotes(name), name_of(dtype));
  }
}

}  // namespace redline::io
