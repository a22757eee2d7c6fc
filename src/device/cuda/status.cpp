// The state of CUDA on this machine. Nothing here throws: a machine without a driver is an answer, not an
// error.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/device.h"

namespace redline::device {
namespace {

constexpr int kOldestMajor = 8;  // bf16 tensor cores came with compute capability 8.0

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string reason(cudaError_t error) {
  cudaGetLastError();  // the runtime keeps the error for the next caller otherwise
  return cudaGetErrorString(error);
}

}  // namespace

CudaStatus cuda_status() {
  CudaStatus status;
  status.built = true;
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) status.runtime_version = version_text(version);
  version = 0;
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) status.driver_version = version_text(version);
  if (status.driver_version.empty()) {
    status.problem = "no NVIDIA driver is loaded on this machine";
    return status;
  }

  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    status.problem = fmt::format("the CUDA driver shows no card: {}", reason(error));
    return status;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i); error != cudaSuccess) {
      status.problem = fmt::format("card {} does not answer: {}", i, reason(error));
      return status;
    }
    status.cards.push_back({properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                            static_cast<std::int64_t>(properties.totalGlobalMem)});
  }
  if (status.cards.empty()) {
    status.problem = "the CUDA driver shows no card";
  } else if (const CudaCard& first = status.cards.front(); first.major < kOldestMajor) {
    status.problem = fmt::format("{} has compute capability {}.{}, and redline needs {}.0", first.name, first.major,
                                 first.minor, kOldestMajor);
  } else if (!has_code_for(REDLINE_CUDA_ARCHS, first.major, first.minor)) {
    status.problem = fmt::format(
        "{} has compute capability {}.{}, and this redline has code for {}; build it with -DREDLINE_CUDA_ARCHS={}{}",
        first.name, first.major, first.minor, REDLINE_CUDA_ARCHS, 10 * first.major + first.minor,
        first.major == 9 ? "a" : "");
  }
  return status;
}

}  // namespace redline::device
