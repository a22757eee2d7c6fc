// Finds the plan of a product, or makes it, and launches.
#include "ops/cuda/gemm.h"

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include "base/clock.h"
#include "base/counted.h"
#include "base/log.h"
#include "device/cuda/belongings.h"
#include "device/cuda/stopwatch.h"
#include "ops/cuda/gemm_plan.h"
#include "ops/cuda/gemm_tuning.h"
#include "ops/cuda/tuning_file.h"

namespace redline::ops::cuda {
namespace {

constexpr double kWorthTuning = 1e9;  // FLOPs: a few microseconds
constexpr double kHeats = 2e10;       // FLOPs of a product whose repetition brings a card to its power cap

bool tuning_is_off() {
  const char* value = std::getenv("REDLINE_TUNING");
  return value && std::string_view(value) == "off";
}

// One card and one version of cuBLASLt: what is fastest on another says nothing here.
std::string machine() {
  int card = 0;
  cudaDeviceProp properties;
  REDLINE_CUDA(cudaGetDevice(&card));
  REDLINE_CUDA(cudaGetDeviceProperties(&properties, card));
  return fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
}

// All plans of a card.
class Plans {
 public:
  const GemmPlan& find(const GemmShape& shape, Bits bits, const Launch& launch) {
    const std::lock_guard lock(mutex_);
    auto it = plans_.find({shape, bits});
    if (it == plans_.end()) {
      GemmPlan plan(handle_.get(), shape);
      plan.choose(choose(plan, shape, bits, launch));
      it = plans_.emplace(std::pair(shape, bits), std::move(plan)).first;
    }
    return it->second;
  }

  void keep_tuning() {
    const std::lock_guard lock(mutex_);
    file_.save();
    if (tuned_.products > 0)
      log::note("tuned {} in {:.1f} s: {:.3f} ms for one of each, {:.3f} ms by cuBLASLt's first choices ({:+.1f}%)",
                counted(tuned_.products, "product"), tuned_.took, 1e3 * tuned_.best, 1e3 * tuned_.first,
                100 * (tuned_.best / tuned_.first - 1));
    tuned_ = {};
  }

 private:
  cublasLtMatmulAlgo_t choose(const GemmPlan& plan, const GemmShape& shape, Bits bits, const Launch& launch) {
    const bool tune =
        !off_ && bits == Bits::free && shape.flops() >= kWorthTuning && !device::cuda::capturing(launch.stream);
    const std::string key = fmt::format("{}: {}", machine_, shape.str());
    if (tune) {
      if (const auto known = file_.find(key)) {
        const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(*known);
        if (plan.accepts(algorithm)) return algorithm;
      }
    }
    const std::vector<cublasLtMatmulAlgo_t> candidates = plan.candidates();
    if (!tune || candidates.size() == 1) return candidates.front();
    const double begin = steady_seconds();
    const bool preheat = !loaded_ && shape.flops() >= kHeats;
    if (const auto fastest = fastest_algorithm(plan, candidates, launch, preheat)) {
      loaded_ = loaded_ || preheat;
      file_.put(key, std::bit_cast<AlgorithmBytes>(fastest->algorithm));
      ++tuned_.products;
      tuned_.best += fastest->seconds;
      tuned_.first += fastest->first_seconds;
      tuned_.took += steady_seconds() - begin;
      return fastest->algorithm;
    }
    log::warn(
        "the product {} was not tuned: no memory for its operands, or no candidate runs; cuBLASLt's first choice is "
        "taken",
        shape.str());
    return candidates.front();
  }

  std::mutex mutex_;
  LtHandle handle_ = make_handle();
  std::string machine_ = machine();
  bool off_ = tuning_is_off();
  TuningFile file_{real_files(), off_ ? Path() : default_tuning_path()};
  std::map<std::pair<GemmShape, Bits>, GemmPlan> plans_;
  bool loaded_ = false;  // the card, by tuning since it was opened
  struct {
    int products = 0;
    double best = 0, first = 0, took = 0;  // seconds
  } tuned_;                                // since tuning was last kept
};

}  // namespace

void gemm(const Gemm& g, const device::cuda::Launch& launch) {
  if (g.m == 0 || g.n == 0) return;
  launch.own->of<Plans>().find(GemmShape(g), g.how.bits, launch).run(g, launch);
}

void keep_tuning(const device::cuda::Launch& launch) { launch.own->of<Plans>().keep_tuning(); }

}  // namespace redline::ops::cuda
