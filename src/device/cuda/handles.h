// CUDA's handles as types that free themselves. The status of a destroy call is dropped: a handle dies on the way out
// of an error at least as often as at the end of a run.
#pragma once

#include <cstddef>
#include <memory>

#include "device/cuda/launch.h"

namespace redline::device::cuda {

template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    kDestroy(handle);
  }
};

using Stream = std::unique_ptr<CUstream_st, Destroy<cudaStreamDestroy>>;
using Event = std::unique_ptr<CUevent_st, Destroy<cudaEventDestroy>>;
using Graph = std::unique_ptr<CUgraph_st, Destroy<cudaGraphDestroy>>;
using GraphExec = std::unique_ptr<CUgraphExec_st, Destroy<cudaGraphExecDestroy>>;

template <auto kFree>
struct FreeBytes {
  void operator()(std::byte* bytes) const { kFree(bytes); }
};
using DeviceBytes = std::unique_ptr<std::byte, FreeBytes<cudaFree>>;
using PinnedBytes = std::unique_ptr<std::byte, FreeBytes<cudaFreeHost>>;

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  REDLINE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

inline Event make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  REDLINE_CUDA(cudaEventCreateWithFlags(&event, flags));
  return Event(event);
}

// Null when the card has no room for it: the caller says what that means.
inline DeviceBytes try_device_bytes(std::size_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();  // else the next launch would be told of it
    return nullptr;
  }
  return DeviceBytes(static_cast<std::byte*>(data));
}

inline PinnedBytes pinned_bytes(std::size_t bytes) {
  void* data = nullptr;
  REDLINE_CUDA(cudaHostAlloc(&data, bytes, cudaHostAllocDefault));
  return PinnedBytes(static_cast<std::byte*>(data));
}

// Null when the system lets no more memory be pinned: for those who can do without.
inline PinnedBytes try_pinned_bytes(std::size_t bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, bytes, cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();  // else the next launch would be told of it
    return nullptr;
  }
  return PinnedBytes(static_cast<std::byte*>(data));
}

}  // namespace redline::device::cuda
