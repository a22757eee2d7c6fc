// The fastest of several algorithms, by time: the heuristic's first guess often is not, and near its guesses lie others that
// it does not name. All are run once; the finalists then take turns for several rounds, since a card's clock changes with
// its power and heat. Operands are random (zeros run up to 20% faster).
#include <algorithm>
#include <bit>

#include "base/random.h"
#include "device/cuda/stopwatch.h"
#include "ops/cuda/gemm_plan.h"

namespace redline::ops::cuda {
namespace {

using device::cuda::DeviceBytes;
using device::cuda::Stopwatch;

constexpr double kFirstLook = 3e-4, kRound = 2e-3;  // seconds that an algorithm runs, at least once
constexpr int kMostRuns = 20, kRounds = 3;
constexpr int kParents = 2, kFinalists = 5;

// A piece of random numbers of the type, copied over the whole array.
DeviceBytes random_array(DType type, std::int64_t elements, cudaStream_t stream) {
  constexpr std::int64_t kPiece = 1 << 16;
  const auto size = static_cast<std::int64_t>(size_of(type)), bytes = elements * size;
  DeviceBytes array = device::cuda::try_device_bytes(static_cast<std::size_t>(bytes));
  if (!array) return nullptr;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(elements, kPiece) * size));
  const Random random(0, 0);
  for (std::size_t i = 0; i < piece.size() / static_cast<std::size_t>(size); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(random.uniform(i)) - 0.5f);
    if (type == DType::bf16)
      reinterpret_cast<std::uint16_t*>(piece.data())[i] = static_cast<std::uint16_t>(bits >> 16);
    else
      reinterpret_cast<std::uint32_t*>(piece.data())[i] = bits;
  }
  auto filled = static_cast<std::int64_t>(piece.size());
  REDLINE_CUDA(cudaMemcpyAsync(array.get(), piece.data(), piece.size(), cudaMemcpyHostToDevice, stream));
  while (filled < bytes) {
    const std::int64_t more = std::min(filled, bytes - filled);
    REDLINE_CUDA(cudaMemcpyAsync(array.get() + filled, array.get(), static_cast<std::size_t>(more),
                                 cudaMemcpyDeviceToDevice, stream));
    filled += more;
  }
  REDLINE_CUDA(cudaStreamSynchronize(stream));
  return array;
}

}  // namespace

std::optional<GemmPlan::Fastest> GemmPlan::fastest(std::span<const cublasLtMatmulAlgo_t> candidates,
                                                   const Launch& launch) const {
  const GemmShape& s = shape_;
  const DeviceBytes a = random_array(s.input, (s.transpose_a ? s.k : s.m) * s.lda, launch.stream);
  const DeviceBytes b = random_array(s.input, (s.transpose_b ? s.n : s.k) * s.ldb, launch.stream);
  const DeviceBytes c = random_array(s.output, s.m * s.ldc, launch.stream);
  if (!a || !b || !c) return std::nullopt;

  const Stopwatch watch(launch.stream);
  struct Timed {
    cublasLtMatmulAlgo_t algorithm;
    double once = 0, sum = 0;  // seconds: one run, and a run's in each of the rounds together
  };
  const auto run_for = [&](const cublasLtMatmulAlgo_t& algorithm, double seconds, double once) {
    const int runs = std::clamp(static_cast<int>(seconds / std::max(once, 1e-7)), 1, kMostRuns);
    watch.start();
    for (int i = 0; i < runs; ++i) try_run(algorithm, a.get(), b.get(), c.get(), launch);
    return watch.stop() / runs;
  };
  std::vector<Timed> seen;
  const auto look_at = [&](const cublasLtMatmulAlgo_t& algorithm) {
    // The first run also loads its kernel.
    if (try_run(algorithm, a.get(), b.get(), c.get(), launch) != CUBLAS_STATUS_SUCCESS) return;
    const double once = run_for(algorithm, 0, 1);
    seen.push_back({algorithm, run_for(algorithm, kFirstLook, once)});
  };
  const auto sort_seen = [&] {
    std::sort(seen.begin(), seen.end(), [](const Timed& x, const Timed& y) { return x.once < y.once; });
  };
  for (const cublasLtMatmulAlgo_t& candidate : candidates) look_at(candidate);
  if (seen.empty()) return std::nullopt;
  const Timed first = seen.front();  // the heuristic's, or the first that runs here
  sort_seen();
  const std::vector<Timed> parents(seen.begin(), seen.begin() + std::min<std::ptrdiff_t>(kParents, std::ssize(seen)));
  for (const Timed& parent : parents)
    for (const cublasLtMatmulAlgo_t& variant : variants(parent.algorithm)) look_at(variant);
  sort_seen();
  seen.resize(std::min<std::size_t>(seen.size(), kFinalists));
  seen.push_back(first);
  for (int round = 0; round < kRounds; ++round)
    for (Timed& t : seen) t.sum += run_for(t.algorithm, kRound, t.once);
  const auto best =
      std::min_element(seen.begin(), seen.end(), [](const Timed& x, const Timed& y) { return x.sum < y.sum; });
  return Fastest{best->algorithm, best->sum / kRounds, seen.back().sum / kRounds};
}

}  // namespace redline::ops::cuda
