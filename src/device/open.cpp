// The choice of a device by its name on the command line.
#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

namespace redline::device {

std::unique_ptr<Device> open_device(std::string_view which) {
  if (which == "cpu") return std::make_unique<CpuDevice>();
  if (which != "cuda" && which != "auto")
    fail_user("--device {}: there is no such device; use cpu, cuda or auto", which);
  const CudaStatus status = cuda_status();
  if (status.problem.empty()) return open_cuda();
  if (which == "cuda") fail_user("--device cuda: {}; use --device cpu", status.problem);
  if (!status.driver_version.empty())  // there is a card, or there should be
    log::warn("--device auto takes the CPU: {}", status.problem);
  return std::make_unique<CpuDevice>();
}

}  // namespace redline::device
