// Two kernels of a stream, the second of which is set up while the first still runs (Hopper and later, where the
// program was compiled for the card; elsewhere one simply follows the other). The first says let_next_kernel_start(),
// the second await_kernel_before() ahead of anything that the first wrote or still reads. A kernel started by
// launch_early always calls the latter, so all work before the first kernel is done as well.
#pragma once

#include <type_traits>

#include "device/cuda/launch.h"

namespace redline::device::cuda {

__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
// All of the kernel before is done, and what it wrote can be read.
__device__ inline void await_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Whether the two above are in the code that this card runs of a kernel. A card that is newer than all that was
// compiled for runs the PTX of an older one, in which they are nothing: its kernels may not start early, for they would
// not wait.
template <class... Parameters>
bool can_overlap(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  REDLINE_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90;
}

template <class... Parameters>
void launch_early(const Launch& launch, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, std::size_t shared,
                  std::type_identity_t<Parameters>... values) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = can_overlap(kernel) ? 1 : 0;
  REDLINE_CUDA(cudaLaunchKernelEx(&config, kernel, values...));
}

}  // namespace redline::device::cuda
