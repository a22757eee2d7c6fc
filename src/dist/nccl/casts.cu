// y[i] = bf16(x[i]), y[i] = x[i], y[i] += x[i] for i < n. A thread takes every 256th element of its block's stretch of
// 1024, so that neighbours read neighbours; parts of a bucket begin anywhere, so no wider load would be aligned.
#include <cuda_bf16.h>

#include "device/cuda/launch.h"
#include "dist/nccl/casts.h"

namespace redline::dist {
namespace {

constexpr int kThreads = 256, kEach = 4;

template <class From, class To, class Put>
__global__ void each_element(const From* from, To* to, std::int64_t n, Put put) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const std::int64_t i = begin + k * kThreads;
    if (i < n) put(to[i], from[i]);
  }
}

template <class From, class To, class Put>
void launch(const From* from, To* to, std::int64_t n, cudaStream_t stream, Put put) {
  if (n <= 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads * kEach - 1) / (kThreads * kEach));
  each_element<<<blocks, kThreads, 0, stream>>>(from, to, n, put);
  REDLINE_LAUNCHED();
}

struct PutBf16 {
  __device__ void operator()(__nv_bfloat16& to, float x) const { to = __float2bfloat16_rn(x); }
};
struct PutFloat {
  __device__ void operator()(float& to, __nv_bfloat16 x) const { to = __bfloat162float(x); }
};
struct AddFloat {
  __device__ void operator()(float& to, __nv_bfloat16 x) const { to += __bfloat162float(x); }
  __device__ void operator()(float& to, float x) const { to += x; }
};

}  // namespace

void cast_to_bf16(const float* from, void* to, std::int64_t n, cudaStream_t stream) {
  launch(from, static_cast<__nv_bfloat16*>(to), n, stream, PutBf16{});
}
void cast_from_bf16(const void* from, float* to, std::int64_t n, cudaStream_t stream) {
  launch(static_cast<const __nv_bfloat16*>(from), to, n, stream, PutFloat{});
}
void add_from_bf16(const void* from, float* to, std::int64_t n, cudaStream_t stream) {
  launch(static_cast<const __nv_bfloat16*>(from), to, n, stream, AddFloat{});
}
void add(const float* from, float* to, std::int64_t n, cudaStream_t stream) { launch(from, to, n, stream, AddFloat{}); }

}  // namespace redline::dist
