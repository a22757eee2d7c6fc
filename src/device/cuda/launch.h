// What every CUDA kernel launch of this program needs: a stream, scratch memory that nobody else uses on that stream, and
// the size of the card. Included by files of cuda/ folders only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace redline::device::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  std::byte* workspace = nullptr;  // device memory, 256-byte aligned; contents undefined between nodes
  std::int64_t workspace_bytes = 0;
  int multiprocessors = 0;
  int major = 0, minor = 0;             // compute capability
  bool tf32 = false;                    // products of fp32 values may round them to tf32
  bool deterministic = false;           // nothing whose bits depend on timing
  bool full_rows = false;               // every document of the batch is as long as the longest may be, and no tail
  std::string_view attention = "auto";  // who computes it
};

// A failed call is a MachineError with the call, file and line.
#define REDLINE_CUDA(call)                                                                                    \
  do {                                                                                                        \
    const cudaError_t redline_error = (call);                                                                 \
    if (redline_error != cudaSuccess)                                                                         \
      ::redline::fail_machine("{}:{}: {}: {}", __FILE__, __LINE__, #call, cudaGetErrorString(redline_error)); \
  } while (false)

// After a kernel's <<<>>>: bad launch parameters show here; faults inside it at the next synchronisation.
#define REDLINE_LAUNCHED() REDLINE_CUDA(cudaGetLastError())

// Lets a kernel use so much dynamic shared memory, which has to be asked for above 48 KiB, static shared memory counted in.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  REDLINE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace redline::device::cuda
