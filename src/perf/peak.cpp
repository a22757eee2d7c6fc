// Times matrix products on the device's own threads.
#include "perf/peak.h"

#include <cblas.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "ops/cpu/gemm.h"
#include "perf/cards.h"

namespace redline::perf {
namespace {

// A large square product, one as the linears of a small model have it (it stays in the caches), and a short one of 2 ms
// or so: on a machine that others use as well, one of many short ones falls between their turns (on a loaded pair
// of Neoverse-V1 cores the first alone once found 32 GFLOP/s, where a training step then made 96).
struct Extents {
  std::int64_t m, n, k;
};
constexpr Extents kTimedProducts[] = {{1024, 1024, 1024}, {2048, 1024, 256}, {512, 1024, 256}};
constexpr std::int64_t kMostElements = 2048 * 1024;  // of one operand
constexpr double kSecondsEach = 0.13;
constexpr int kMostRuns = 1000;   // of each
constexpr double kSteady = 0.85;  // of a peak: what half of the products reach on a machine of one's own

std::vector<float> random_elements(std::uint64_t stream) {
  const Random random(0, stream);
  std::vector<float> m(static_cast<std::size_t>(kMostElements));
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = static_cast<float>(random.uniform(i)) - 0.5f;
  return m;
}

Peak measure_cpu_peak(ThreadPool& pool) {
  const std::vector<float> a = random_elements(1), b = random_elements(2);
  std::vector<float> c(a.size());
  std::vector<TimedProduct> timed;
  for (const Extents& e : kTimedProducts) {
    const ops::cpu::Gemm product = ops::cpu::product(  // y = x * weight^T, as every linear of a model
        {a.data(), e.m, e.k, e.k}, ops::cpu::turned({b.data(), e.n, e.k, e.k}), c.data(), e.n);
    const double start = steady_seconds();
    std::vector<double>& rates =
        timed.emplace_back(TimedProduct{fmt::format("fp32 product of {} x {} x {}", e.m, e.n, e.k), {}}).rates;
    for (int run = 0; run < kMostRuns && steady_seconds() - start < kSecondsEach; ++run) {
      const double begin = steady_seconds();
      ops::cpu::gemm(product, pool);
      rates.push_back(2.0 * static_cast<double>(e.m * e.n * e.k) / (steady_seconds() - begin));
    }
  }
  return peak_of(timed);
}

}  // namespace

Peak peak_of(const std::vector<TimedProduct>& products) {
  Peak peak;
  for (const TimedProduct& product : products) {
    std::vector<double> rates = product.rates;
    std::ranges::sort(rates);
    if (rates.empty() || rates.back() <= peak.flops) continue;
    peak.flops = rates.back();
    peak.usual = rates[rates.size() / 2];
    peak.source = "measured: " + product.what;
  }
  if (peak.usual < kSteady * peak.flops)
    peak.source += fmt::format(", noisy: half of them reached {:.0f}% of it at most", 100 * peak.usual / peak.flops);
  return peak;
}

Peak measure_peak(device::Device& device) {
  if (device.kind() == device::Kind::cpu) return measure_cpu_peak(static_cast<device::CpuDevice&>(device).pool());
  return measure_cuda_peak(device);
}

Peak find_peak(device::Device& device) {
  const Card* card = device.kind() == device::Kind::cuda ? find_card(device.name()) : nullptr;
  if (card) return {card->tflops.bf16 * 1e12, "datasheet, dense bf16"};
  Peak peak = measure_peak(device);
  peak.measured = true;
  return peak;
}

std::string peaks_differ(const Peak& first, const Peak& last) {
  const double ratio = last.flops / first.flops;
  if (ratio > kSteady && ratio < 1 / kSteady) return "";
  return fmt::format(
      "a product reaches {:.3g} GFLOP/s now and reached {:.3g} at the start, against which mfu is held: others use "
      "this machine, and mfu is noisy (50% of it would be {:.0f}% against the larger of the two)",
      1e-9 * last.flops, 1e-9 * first.flops, 50 * std::min(1.0, first.flops / last.flops));
}

double measure_copy_rate(device::Device& device) {
  if (device.kind() != device::Kind::cpu) return measure_cuda_copy_rate(device);
  constexpr std::int64_t kBytes = std::int64_t{64} << 20, kPiece = 1 << 20;  // beyond the caches
  constexpr int kRuns = 5;
  const auto from = device.allocate(kBytes), to = device.allocate(kBytes);
  std::memset(from->data(), 1, kBytes);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = steady_seconds();
    static_cast<device::CpuDevice&>(device).pool().for_ranges(
        kBytes, kPiece, [&](std::int64_t first, std::int64_t end) {
          std::memcpy(to->data() + first, from->data() + first, static_cast<std::size_t>(end - first));
        });
    if (run > 0) best = std::max(best, 2.0 * static_cast<double>(kBytes) / (steady_seconds() - begin));
  }
  return best;
}

BlasLibrary blas_library() {
  const std::string config = openblas_get_config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
  return {config.substr(0, config.find(' ', config.find(' ') + 1)), openblas_get_corename()};
}

}  // namespace redline::perf
