// Normals by the block, in loops that become vector code, and arrays of them.
#include "base/random.h"

#include <algorithm>

#include "base/normals.h"
#include "base/small_floats.h"
#include "base/tensor.h"
#include "base/thread_pool.h"

namespace redline {

void Random::fill_normals(std::uint64_t first, std::span<float> out) const {
  constexpr std::size_t kBlock = 64;  // counters at a time: four words each, all in the first-level cache
  std::uint32_t words_of[4][kBlock];
  float drawn[4 * kBlock];
  for (std::size_t done = 0; done < out.size(); done += 4 * kBlock, first += kBlock) {
#pragma omp simd
    for (std::size_t i = 0; i < kBlock; ++i) {
      const auto w = words(first + i);
      for (std::size_t j = 0; j < 4; ++j) words_of[j][i] = w[j];
    }
    for (std::size_t pair = 0; pair < 2; ++pair) {
#pragma omp simd
      for (std::size_t i = 0; i < kBlock; ++i) {
        const float radius = std::sqrt(box_muller::squared_radius(words_of[2 * pair][i]));
        const box_muller::Two two = box_muller::on_circle(radius, words_of[2 * pair + 1][i]);
        drawn[4 * i + 2 * pair] = two.first;
        drawn[4 * i + 2 * pair + 1] = two.second;
      }
    }
    std::copy_n(drawn, std::min(4 * kBlock, out.size() - done), out.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

void draw(const Normals& from, const Tensor& to, ThreadPool& pool) {
  REDLINE_CHECK(to.dtype == DType::f32 || to.dtype == DType::bf16, "normals in {}", name_of(to.dtype));
  constexpr std::int64_t kGrain = 1 << 16, kPiece = 1 << 11;  // a piece stays in the first-level cache
  pool.for_ranges(to.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    float drawn[kPiece];
    for (std::int64_t at = begin; at < end; at += kPiece) {
      const std::span<float> some(drawn, static_cast<std::size_t>(std::min(kPiece, end - at)));
      from.random.fill_normals(from.first + static_cast<std::uint64_t>(at / 4), some);
      for (float& x : some) x = from.mean + from.std * x;
      if (to.dtype == DType::f32)
        std::ranges::copy(some, to.f32() + at);
      else
        std::ranges::transform(some, to.as<std::uint16_t>() + at, bf16_from_f32);
    }
  });
}

}  // namespace redline
