// Two kernels of a stream, the second of which is set up while the first still runs (on Hopper; elsewhere one simply follows
// the other). The first says let_next_kernel_start(), the second await_kernel_before() ahead of anything that the first
// wrote.
#pragma once

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

template <class... Parameters>
void launch_early(const Launch& launch, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                  Parameters... values) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = launch.stream;
  config.attrs = &early;
  // Only where the kernel was compiled with its await: newer cards compile the PTX of sm_80, which has none.
  config.numAttrs = REDLINE_SM90A && launch.major == 9 ? 1 : 0;
  REDLINE_CUDA(cudaLaunchKernelEx(&config, kernel, values...));
}

}  // namespace redline::device::cuda
