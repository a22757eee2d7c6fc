// Counter-based random numbers (Philox 4x32-10): the value at a counter depends on the key and the counter alone, so
// the same bits come out on every backend, thread count, rank count and resume. There is no state to save.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace redline {

struct Tensor;
class ThreadPool;

struct PhiloxKey {
  std::uint32_t lo = 0, hi = 0;
};

constexpr std::array<std::uint32_t, 4> philox(PhiloxKey key, std::array<std::uint32_t, 4> counter) {
  constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u, kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{kMul0} * counter[0];
    const std::uint64_t p1 = std::uint64_t{kMul1} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key.lo, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key.hi, static_cast<std::uint32_t>(p0)};
    key.lo += kWeyl0;
    key.hi += kWeyl1;
  }
  return counter;
}

// One stream of numbers among many: (seed, stream) is the key, `index` the counter. A stream's meaning (a parameter, a
// document, a layer at a step) is the caller's choice.
class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}, stream_(stream) {}

  // Four independent 32-bit words at `index`.
  constexpr std::array<std::uint32_t, 4> words(std::uint64_t index) const {
    return philox(key_, {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                         static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)});
  }
  constexpr std::uint64_t bits(std::uint64_t index) const {
    const auto w = words(index);
    return std::uint64_t{w[1]} << 32 | w[0];
  }
  // Uniform in [0, 1).
  constexpr double uniform(std::uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1p-53; }
  // Uniform in [0, n), n > 0.
  constexpr std::uint64_t below(std::uint64_t index, std::uint64_t n) const {
    return static_cast<std::uint64_t>(uniform(index) * static_cast<double>(n));
  }
  // Four independent standard normals at `index` (Box-Muller).
  std::array<double, 4> normals(std::uint64_t index) const {
    const auto w = words(index);
    const auto open_unit = [](std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; };
    std::array<double, 4> out;
    for (std::size_t pair = 0; pair < 2; ++pair) {
      const double radius = std::sqrt(-2.0 * std::log(open_unit(w[2 * pair])));
      const double angle = 6.283185307179586 * open_unit(w[2 * pair + 1]);
      out[2 * pair] = radius * std::cos(angle);
      out[2 * pair + 1] = radius * std::sin(angle);
    }
    return out;
  }
  double normal(std::uint64_t index) const { return normals(index)[0]; }
  // Standard normals in fp32: out[4 i + j] is normals(first + i)[j] within 2e-6, the same bits in every build. Many at
  // a time: on one core of a Neoverse-V1 some 3 ns each, where normals() takes 25.
  void fill_normals(std::uint64_t first, std::span<float> out) const;

 private:
  PhiloxKey key_;
  std::uint64_t stream_;
};

// An array of normals: its element i is mean + std * x, where x is number i % 4 of the index first + i / 4 as
// fill_normals() has it. With a std of 0 it is a constant.
struct Normals {
  Random random;
  std::uint64_t first = 0;
  float mean = 0, std = 1;
};
// Writes all of an array in f32 or bf16 (device::Device::draw is the same in a device's memory).
void draw(const Normals& from, const Tensor& to, ThreadPool& pool);

}  // namespace redline
