// The CUDA backend that was not built: it says so.
#include "device/device.h"

namespace redline::device {

CudaStatus cuda_status() {
  CudaStatus status;
  status.problem = "this redline was built without CUDA";
  return status;
}

}  // namespace redline::device
