// The CUDA executor that was not built. No device asks for it: there is none without CUDA.
#include "program/backends.h"

namespace redline::program {

std::unique_ptr<Executor> make_cuda_executor(const ProgramSet&, device::Device&, const ExecutorOptions&) {
  fail_machine("make_cuda_executor: this redline was built without CUDA");
}

}  // namespace redline::program
