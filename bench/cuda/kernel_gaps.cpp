// Says how much of a program's time on a GPU lies between its kernels. The driver loads it into any CUDA program:
//   CUDA_INJECTION64_PATH=build-cuda/libkernel_gaps.so redline train --preset ping-95m --device cuda ...
// Start, tuning and evaluation do not count: a stretch ends where nothing ran for 20 ms, and of the longest stretch the
// last four fifths are looked at. Tracing itself widens gaps a little.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <span>
#include <vector>

namespace {

struct Interval {
  std::uint64_t begin, end;  // ns
};
std::mutex g_mutex;  // CUPTI hands buffers over on threads of its own
std::vector<Interval> g_kernels;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBytes));
  *bytes = *buffer ? kBytes : 0;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    g_kernels.push_back({kernel->start, kernel->end});
  }
  std::free(buffer);
}

std::span<const Interval> longest_stretch(std::span<const Interval> kernels) {
  constexpr std::uint64_t kPause = 20'000'000;
  std::span<const Interval> longest;
  std::size_t begin = 0;
  std::uint64_t reached = 0;
  for (std::size_t i = 0; i <= kernels.size(); ++i) {
    if (i == kernels.size() || (i > begin && kernels[i].begin > reached + kPause)) {
      if (i - begin > longest.size()) longest = kernels.subspan(begin, i - begin);
      begin = i;
    }
    if (i < kernels.size()) reached = std::max(reached, kernels[i].end);
  }
  return longest.subspan(longest.size() / 5);
}

void report() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(g_mutex);
  std::ranges::sort(g_kernels, {}, &Interval::begin);
  const std::span<const Interval> kernels = longest_stretch(g_kernels);
  if (kernels.size() < 2) {
    std::fprintf(stderr, "kernel gaps: no kernels were seen\n");
    return;
  }
  std::uint64_t reached = kernels[0].begin, idle = 0, widest = 0;
  for (const Interval& kernel : kernels) {
    if (kernel.begin > reached) {
      idle += kernel.begin - reached;
      widest = std::max(widest, kernel.begin - reached);
    }
    reached = std::max(reached, kernel.end);
  }
  const double all = static_cast<double>(reached - kernels[0].begin);
  std::fprintf(
      stderr, "kernel gaps: %.2f%% of %.0f ms between %zu kernels, %.2f us each in the mean, %.1f us the widest\n",
      100 * static_cast<double>(idle) / all, all * 1e-6, kernels.size(),
      static_cast<double>(idle) * 1e-3 / static_cast<double>(kernels.size()), static_cast<double>(widest) * 1e-3);
}

}  // namespace

extern "C" int InitializeInjection() {
  const bool ready = cuptiActivityRegisterCallbacks(give_buffer, take_buffer) == CUPTI_SUCCESS &&
                     cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS;
  if (ready)
    std::atexit(report);
  else
    std::fprintf(stderr, "kernel gaps: CUPTI does not trace here\n");
  return 1;
}
