// Finds the plan of a product, or makes it, and launches.
#include "ops/cuda/gemm.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "base/log.h"
#include "ops/cuda/gemm_plan.h"
#include "ops/cuda/tuning_file.h"

namespace redline::ops::cuda {
namespace {

constexpr double kWorthTuning = 1e9;  // FLOPs: a few microseconds

bool tuning_is_off() {
  const char* value = std::getenv("REDLINE_TUNING");
  return value && std::string_view(value) == "off";
}

LtHandle make_handle() {
  cublasLtHandle_t handle = nullptr;
  REDLINE_CUBLAS(cublasLtCreate(&handle));
  return LtHandle(handle);
}

// One card and one version of cuBLASLt: what is fastest on another says nothing here.
std::string machine() {
  int card = 0;
  cudaDeviceProp properties;
  REDLINE_CUDA(cudaGetDevice(&card));
  REDLINE_CUDA(cudaGetDeviceProperties(&properties, card));
  return fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REDLINE_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// All plans of this process, which uses one card.
class Plans {
 public:
  const GemmPlan& find(const GemmShape& shape, const Launch& launch) {
    const std::lock_guard lock(mutex_);
    auto it = plans_.find(shape);
    if (it == plans_.end()) {
      GemmPlan plan(handle_.get(), shape);
      plan.choose(choose(plan, shape, launch));
      it = plans_.emplace(shape, std::move(plan)).first;
    }
    return it->second;
  }

  void keep_tuning() {
    const std::lock_guard lock(mutex_);
    file_.save();
  }

 private:
  cublasLtMatmulAlgo_t choose(const GemmPlan& plan, const GemmShape& shape, const Launch& launch) {
    const bool tune = !off_ && shape.flops() >= kWorthTuning && !capturing(launch.stream);
    const std::string key = fmt::format("{}: {}", machine_, shape.str());
    if (tune) {
      if (const auto known = file_.find(key)) {
        const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*known);
        if (plan.accepts(algorithm)) return algorithm;
      }
    }
    const std::vector<cublasLtMatmulAlgo_t> candidates = plan.candidates();
    if (!tune || candidates.size() == 1) return candidates.front();
    if (const auto fastest = plan.fastest(candidates, launch)) {
      file_.put(key, std::bit_cast<AlgorithmBytes>(*fastest));
      return *fastest;
    }
    log::warn("no memory to tune the product {}: cuBLASLt's first choice is taken", shape.str());
    return candidates.front();
  }

  std::mutex mutex_;
  LtHandle handle_ = make_handle();
  std::string machine_ = machine();
  bool off_ = tuning_is_off();
  TuningFile file_{real_files(), off_ ? Path() : default_tuning_path()};
  std::map<GemmShape, GemmPlan> plans_;
};

Plans& plans() {
  static Plans all;
  return all;
}

}  // namespace

void gemm(const Gemm& g, const device::cuda::Launch& launch) {
  if (g.m == 0 || g.n == 0) return;
  REDLINE_CHECK(launch.workspace_bytes >= kGemmWorkspaceBytes, "a workspace of {} bytes", launch.workspace_bytes);
  plans().find(GemmShape(g, launch.tf32), launch).run(g.a, g.b, g.c, launch);
}

void keep_tuning() { plans().keep_tuning(); }

}  // namespace redline::ops::cuda
