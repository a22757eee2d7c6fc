// The choice of a device by its name on the command line.
#include "base/error.h"
#include "device/device.h"

namespace redline::device {

std::unique_ptr<Device> open_device(std::string_view which) {
  if (which == "cpu") return std::make_unique<CpuDevice>();
  if (which != "cuda" && which != "auto")
    fail_user("--device {}: there is no such device; use cpu, cuda or auto", which);
  const std::string problem = cuda_status().problem;
  if (problem.empty()) return open_cuda();
  if (which == "auto") return std::make_unique<CpuDevice>();
  fail_user("--device cuda: {}; use --device cpu", problem);
}

}  // namespace redline::device
