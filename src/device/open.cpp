// The choice of a device by its name on the command line.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"

namespace redline::device {

bool has_code_for(std::string_view architectures, int major, int minor) {
  while (!architectures.empty()) {
    const std::size_t end = std::min(architectures.find(' '), architectures.size());
    const std::string_view word = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    int built = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), built);
    if (error != std::errc()) continue;
    const std::string_view kind(rest, static_cast<std::size_t>(word.data() + word.size() - rest));
    const int card = 10 * major + minor;
    if (kind.starts_with('a') ? card == built
        : kind == "-real"     ? card >= built && card / 10 == built / 10
                              : card >= built)
      return true;
  }
  return false;
}

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
