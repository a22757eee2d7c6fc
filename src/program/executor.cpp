// The choice of an executor by the kind of device.
#include "program/executor.h"

#include "program/backends.h"

namespace redline::program {

std::unique_ptr<Executor> make_executor(const ProgramSet& set, device::Device& device, const ExecutorOptions& options) {
  switch (device.kind()) {
    case device::Kind::cpu: return make_cpu_executor(set, static_cast<device::CpuDevice&>(device), options);
    case device::Kind::cuda: return make_cuda_executor(set, device, options);
  }
  fail_machine("make_executor: a device of an unknown kind");
}

}  // namespace redline::program
