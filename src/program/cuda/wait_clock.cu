// The kernels of the clock of waits: one thread each, before a wait and after it.
#include "program/cuda/wait_clock.h"

namespace redline::program {
namespace {

constexpr int kBegan = 0, kSum = 1;

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void begin_wait(volatile std::uint64_t* clock) { clock[kBegan] = nanoseconds(); }

__global__ void end_wait(volatile std::uint64_t* clock) { clock[kSum] = clock[kSum] + nanoseconds() - clock[kBegan]; }

std::uint64_t* words(const device::cuda::PinnedBytes& bytes) { return reinterpret_cast<std::uint64_t*>(bytes.get()); }

}  // namespace

WaitClock::WaitClock() : bytes_(device::cuda::pinned_bytes(2 * sizeof(std::uint64_t))) {
  words(bytes_)[kBegan] = words(bytes_)[kSum] = 0;
}

void WaitClock::begin(cudaStream_t stream) const {
  begin_wait<<<1, 1, 0, stream>>>(words(bytes_));
  REDLINE_CUDA(cudaGetLastError());
}

void WaitClock::end(cudaStream_t stream) const {
  end_wait<<<1, 1, 0, stream>>>(words(bytes_));
  REDLINE_CUDA(cudaGetLastError());
}

double WaitClock::seconds() const {
  return 1e-9 * static_cast<double>(*static_cast<const volatile std::uint64_t*>(words(bytes_) + kSum));
}

}  // namespace redline::program
