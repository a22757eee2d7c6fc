// Work that goes on beside other work on a card.
//
// Copying ahead: a thread asks for the vectors of its next round, which arrive in its own slots of shared memory while
// it works on the current one, so that memory never waits for arithmetic. A thread takes only what it asked for itself:
// no barrier is needed. More rounds ahead were slower, by 1 to 3%.
//
// Two kernels of a stream, the second of which is set up while the first still runs (Hopper and later, where the
// program was compiled for the card; elsewhere one simply follows the other). The first says let_next_kernel_start(),
// the second await_kernel_before() ahead of anything that the first wrote or still reads. A kernel started by
// launch_early always calls the latter, so all work before the first kernel is done as well.
#pragma once

#include <type_traits>

#include "device/cuda/vectors.cuh"

namespace redline::device::cuda {

// Copies 16 bytes from global to shared memory, or writes 16 zeros; `from` is not read then, whatever it is.
__device__ inline void copy_16(std::uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
__device__ inline void copy_4(std::uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(present ? 4 : 0) : "memory");
}
// This thread's copies have arrived; a barrier after it shows everybody's.
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// kSlots vectors of T a round. The caller asks for the first, then for each awaits it, takes it, and asks for the next.
template <class T, int kWidth, int kSlots>
class CopyAhead {
 public:
  static constexpr std::size_t kSlotBytes = kWidth == 1 ? 4 : sizeof(T) * kWidth;  // copies move 4 or 16 bytes
  static constexpr std::size_t bytes(std::int64_t threads) {
    return static_cast<std::size_t>(threads) * kSlots * kSlotBytes;
  }

  // `shared` has room for bytes() of the block's threads, which are whole warps, and is aligned to 16.
  __device__ explicit CopyAhead(std::byte* shared) {
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    slots_ = shared + thread / kWarp * (kSlots * kSlotDistance) + thread % kWarp * kSlotBytes;
  }

  __device__ void ask(int slot, const T* from, bool present) {
    std::byte* const to = slots_ + slot * kSlotDistance;
    if constexpr (kWidth > 1) {
      const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
      for (int part = 0; part < static_cast<int>(kSlotBytes / 16); ++part)
        copy_16(address + 16 * part, reinterpret_cast<const std::byte*>(from) + 16 * part, present);
    } else {
      *reinterpret_cast<T*>(to) = present ? *from : T(0.0f);
    }
  }
  __device__ void await() const { await_copies(); }
  __device__ Vector<T, kWidth> take(int slot) const {
    return *reinterpret_cast<const Vector<T, kWidth>*>(slots_ + slot * kSlotDistance);
  }

 private:
  // A warp's slots lie together, those of its lanes beside each other: their distances are known at compile time.
  static constexpr unsigned kSlotDistance = kWarp * kSlotBytes;

  std::byte* slots_;
};

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
