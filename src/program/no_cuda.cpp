// The CUDA executor that was not built. No device asks for it: there is none without CUDA.
#include "program/arena_executor.h"

namespace redline::program {

std::unique_ptr<Executor> make_cuda_executor(const ProgramSet&, device::Device&, const ExecutorOptions&) {
  fail_machine("make_cuda_executor: this redline was built without CUDA");
}

void load_libraries(device::Device&) {}

void tune_products(device::Device&, std::string_view, TuningTime) {}  // the CPU's products have one way

}  // namespace redline::program
