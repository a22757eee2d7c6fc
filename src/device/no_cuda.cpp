// The CUDA backend that was not built: it says so.
#include "base/error.h"
#include "device/device.h"

namespace redline::device {

CudaStatus cuda_status() {
  CudaStatus status;
  status.problem = "this redline was built without CUDA";
  return status;
}

std::unique_ptr<Device> open_cuda() { fail_machine("open_cuda: {}", cuda_status().problem); }

}  // namespace redline::device
