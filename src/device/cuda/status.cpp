// What the CUDA runtime says of this machine. Nothing here throws: a machine without a driver is an answer, not an
// error.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "device/device.h"

namespace redline::device {
namespace {

// Turn this on with the first complete set of kernels; until then no card can be trained on, whatever the driver shows.
constexpr bool kCanTrain = false;

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
  } else if (!kCanTrain) {
    status.problem = "the CUDA backend has no kernels for training yet";
  }
  return status;
}

}  // namespace redline::device
