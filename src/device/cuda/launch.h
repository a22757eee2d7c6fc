// Where a kernel is launched: the stream and the card. How it computes stands in its op, and the memory that it uses
// are operands. Included by files of cuda/ folders only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "base/error.h"

namespace redline::device::cuda {

class CardObjects;

struct Launch {
  cudaStream_t stream = nullptr;
  CardObjects* own = nullptr;  // plans and choices made on this card (device/cuda/handles.h)
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
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

// Lets a kernel use so much dynamic shared memory, which has to be asked for above 48 KiB, static shared memory counted
// in.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  REDLINE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace redline::device::cuda
