// What is kept on a card: CUDA's handles as types that free themselves, a stopwatch of two events, and the objects
// that go with an open card. The status of a destroy call is dropped: a handle dies on the way out
// of an error at least as often as at the end of a run.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>

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
    cudaGetLastError();  // else the next launch would report it
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
    cudaGetLastError();  // else the next launch would report it
    return nullptr;
  }
  return PinnedBytes(static_cast<std::byte*>(data));
}

// Time on the card between two points of a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream), begin_(make_event()), end_(make_event()) {}
  void start() const { REDLINE_CUDA(cudaEventRecord(begin_.get(), stream_)); }
  double stop() const {  // seconds; waits
    float ms = 0;
    REDLINE_CUDA(cudaEventRecord(end_.get(), stream_));
    REDLINE_CUDA(cudaEventSynchronize(end_.get()));
    REDLINE_CUDA(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return 1e-3 * ms;
  }

 private:
  cudaStream_t stream_;
  Event begin_, end_;
};

inline bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REDLINE_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// Objects that other rooms keep for as long as a card is open, one a type: plans of products, choices that were
// measured. They go with the card.
class CardObjects {
 public:
  // The one T of this card, made when it is first asked for.
  template <class T>
  T& of() {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& thing = things_[typeid(T)];
    if (!thing) thing = std::make_shared<T>();
    return *static_cast<T*>(thing.get());
  }

 private:
  std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> things_;
};

}  // namespace redline::device::cuda
