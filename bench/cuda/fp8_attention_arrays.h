// What the benchmark of attention in eight bits stands on: medians of time, arrays of normal numbers, scales in device
// memory, and how far a result in eight bits is from one in bf16.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/random.h"
#include "base/small_floats.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "fp8_attention_graphs.h"
#include "ops/fp8.h"

namespace redline::fp8_attention {

using device::cuda::Launch;

inline constexpr int kRuns = 40;
inline constexpr double kWarmUp = 1.0;  // seconds

template <class... Args>
void progress(fmt::format_string<Args...> text, Args&&... args) {
  std::fprintf(stderr, "%s\n", fmt::format(text, std::forward<Args>(args)...).c_str());
}

template <class Run>
double median_ms(const Run& run, const Launch& on) {
  const device::cuda::Stopwatch watch(on.stream);
  double warm = 0;
  do {
    watch.start();
    for (int i = 0; i < 5; ++i) run();
    warm += watch.stop();
  } while (warm < kWarmUp);
  std::vector<device::cuda::Event> marks;
  for (int i = 0; i <= kRuns; ++i) marks.push_back(device::cuda::make_event());
  REDLINE_CUDA(cudaEventRecord(marks[0].get(), on.stream));
  for (std::size_t i = 1; i < marks.size(); ++i) {
    run();
    REDLINE_CUDA(cudaEventRecord(marks[i].get(), on.stream));
  }
  REDLINE_CUDA(cudaEventSynchronize(marks.back().get()));
  std::vector<float> times(kRuns);
  for (std::size_t i = 0; i < times.size(); ++i)
    REDLINE_CUDA(cudaEventElapsedTime(&times[i], marks[i].get(), marks[i + 1].get()));
  std::ranges::sort(times);
  return 0.5 * (static_cast<double>(times[kRuns / 2 - 1]) + static_cast<double>(times[kRuns / 2]));
}

class Arrays {
 public:
  explicit Arrays(device::CudaDevice& device) : device_(device) {}
  Tensor make(DType dtype, const Shape& shape) {
    Tensor t{nullptr, dtype, shape};
    t.data = buffers_.emplace_back(device_.allocate(t.bytes()))->data();
    return t;
  }
  Tensor normals(const Shape& shape, std::uint64_t stream, float& amax) {
    const Tensor t = make(DType::bf16, shape);
    std::vector<float> drawn(1 << 22);
    std::vector<std::uint16_t> piece(drawn.size());
    const auto step = static_cast<std::int64_t>(drawn.size());
    for (std::int64_t at = 0; at < t.elements(); at += step) {
      Random(11, stream).fill_normals(static_cast<std::uint64_t>(at / 4), drawn);
      for (std::size_t i = 0; i < drawn.size(); ++i) {
        piece[i] = bf16_from_f32(drawn[i]);
        amax = std::max(amax, std::abs(f32_from_bf16(piece[i])));
      }
      device_.copy_in(t.as<std::uint16_t>() + at, piece.data(), 2 * std::min(step, t.elements() - at));
    }
    return t;
  }
  Tensor scale(float scale) {
    const ops::Fp8Scale entry{.inverse = 1 / scale, .scale = scale, .next = 0, .amax = 0, .history = {}};
    const Tensor t = make(DType::u8, {static_cast<std::int64_t>(sizeof entry)});
    device_.copy_in(t.data, &entry, sizeof entry);
    return t;
  }
  template <class T>
  std::vector<T> on_host(const Tensor& t) {
    std::vector<T> out(static_cast<std::size_t>(t.bytes()) / sizeof(T));
    device_.wait();
    device_.copy_out(out.data(), t.data, t.bytes());
    return out;
  }

 private:
  device::CudaDevice& device_;
  std::vector<std::unique_ptr<device::Buffer>> buffers_;
};

// Scales and largest magnitudes, each in 256 bytes of its own.
class Scalars {
 public:
  Scalars(device::CudaDevice& device, Arrays& arrays)
      : device_(device), memory_(arrays.make(DType::u8, {256 * kEndOfScalars})) {
    device_.fill(memory_.data, 0, memory_.bytes());
  }
  void* at(std::int64_t uid) const { return memory_.as<std::byte>() + 256 * uid; }
  void set(Uid uid, float value) { device_.copy_in(at(uid), &value, sizeof value); }
  void set_pair(Uid scale, Uid inverse, float value) {
    set(scale, value);
    set(inverse, 1 / value);
  }
  float get(Uid uid) const {
    float value = 0;
    device_.wait();
    device_.copy_out(&value, at(uid), sizeof value);
    return value;
  }
  void put(Pointers& pointers) const {
    for (std::int64_t uid = kFirstScalar; uid < kEndOfScalars; ++uid) pointers[uid] = at(uid);
  }

 private:
  device::CudaDevice& device_;
  Tensor memory_;
};

inline float largest(const std::vector<std::uint16_t>& x, const Stretch& at, std::int64_t n) {
  float most = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < at.width; ++j)
      most = std::max(most, std::abs(f32_from_bf16(x[static_cast<std::size_t>(at.offset + i * at.stride + j)])));
  return most;
}

// Root of the mean square of the difference, over that of the reference.
inline double difference(const std::vector<std::uint8_t>& x, const Stretch& at, DType dtype, float inverse,
                         const std::vector<std::uint16_t>& reference, const Stretch& reference_at, std::int64_t n) {
  const std::array<float, 256> numbers = fp8_numbers(fp8_format(dtype));
  double off = 0, whole = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint8_t* const row = x.data() + at.offset + i * at.stride;
    const std::uint16_t* const reference_row = reference.data() + reference_at.offset + i * reference_at.stride;
    for (std::int64_t j = 0; j < at.width; ++j) {
      const double b = f32_from_bf16(reference_row[j]), a = numbers[row[j]] * inverse;
      off += (a - b) * (a - b);
      whole += b * b;
    }
  }
  return std::sqrt(off / whole);
}

}  // namespace redline::fp8_attention
