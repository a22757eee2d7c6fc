// The choice of a device by its name on the command line.
#include "base/error.h"
#include "device/device.h"

namespace redline::device {

std::unique_ptr<Device> open_device(std::string_view which) {
  // `auto` is the CPU as long as cuda_status() never reports a card that can train.
  if (which == "cpu" || which == "auto") return std::make_unique<CpuDevice>();
  if (which == "cuda") fail_user("--device cuda: {}; use --device cpu", cuda_status().problem);
  fail_user("--device {}: there is no such device; use cpu, cuda or auto", which);
}

}  // namespace redline::device
