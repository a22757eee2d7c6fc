// Arrays of normals in a card's memory, with the bits of base/random.cpp.
// One thread has the four numbers of one index.
#include "base/normals.h"
#include "device/cuda/device.h"
#include "device/cuda/vectors.cuh"

namespace redline::device {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

template <class T>
__global__ void __launch_bounds__(kThreads) draw(Normals from, T* to, std::int64_t n, bool vectors) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, at = index * kWidth;
  if (at >= n) return;
  const auto words = from.random.words(from.first + static_cast<std::uint64_t>(index));
  float x[kWidth];
#pragma unroll
  for (int pair = 0; pair < kWidth; pair += 2) {
    const box_muller::Two two = box_muller::on_circle(sqrtf(box_muller::squared_radius(words[pair])), words[pair + 1]);
    x[pair] = from.mean + from.std * two.first;
    x[pair + 1] = from.mean + from.std * two.second;
  }
  if (vectors && at + kWidth <= n) return cuda::store<kWidth>(to + at, x);
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (at + i < n) cuda::store<1>(to + at + i, {x[i]});
}

}  // namespace

void CudaDevice::draw(const Normals& from, const Tensor& to) {
  REDLINE_CHECK(to.dtype == DType::f32 || to.dtype == DType::bf16, "normals in {}", redline::name_of(to.dtype));
  const std::int64_t n = to.elements();
  if (n == 0) return;
  const auto launch = [&]<class T>(T* data) {
    const bool vectors = reinterpret_cast<std::uintptr_t>(data) % (kWidth * sizeof(T)) == 0;
    device::draw<<<cuda::blocks_for(n, kThreads * kWidth), kThreads, 0, stream_.get()>>>(from, data, n, vectors);
    REDLINE_LAUNCHED();
  };
  to.dtype == DType::f32 ? launch(to.f32()) : launch(to.as<cuda::bf16>());
}

}  // namespace redline::device
