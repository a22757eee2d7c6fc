// One maker of executors a backend; make_executor chooses among them.
#pragma once

#include "program/executor.h"

namespace redline::program {

std::unique_ptr<Executor> make_cpu_executor(const ProgramSet& set, device::CpuDevice& device,
                                            const ExecutorOptions& options);

// Without CUDA, program/no_cuda.cpp stands in.
std::unique_ptr<Executor> make_cuda_executor(const ProgramSet& set, device::Device& device,
                                             const ExecutorOptions& options);

}  // namespace redline::program
