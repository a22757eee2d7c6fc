// Loading weights against reading their file: REDLINE_WEIGHTS names a folder (a Hugging Face folder or a checkpoint). `read`
// is what `cat FILE > /dev/null` does; `load` is everything from the folder's name to a model that runs.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdlib>

#include "infer/load.h"
#include "io/weight_files.h"

namespace redline {
namespace {

const char* folder() { return std::getenv("REDLINE_WEIGHTS"); }

void read_file(benchmark::State& state) {
  if (!folder()) return state.SkipWithError("REDLINE_WEIGHTS names no folder");
  const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), folder());
  const io::WeightFiles weights(real_files(), checkpoint.folder);
  for (auto _ : state)
    for (const auto& file : weights.files())
      real_files().read_pieces(file.reader->path(), [](std::span<const std::byte>) {});
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(weights.bytes()));
}

void load(benchmark::State& state) {
  if (!folder()) return state.SkipWithError("REDLINE_WEIGHTS names no folder");
  device::CpuDevice device;
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), folder());
    model::LoweringOptions options = model::lowering_options({}, device.kind());
    options.batch = {1, 16, 1};
    options.training = false;
    bytes = io::WeightFiles(real_files(), checkpoint.folder).bytes();
    const auto engine = infer::load_engine(checkpoint, options, device);
    state.counters["arena_mib"] = static_cast<double>(engine->executor().arena_bytes()) * 0x1p-20;
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_mib"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

BENCHMARK(read_file)->Name("read")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(load)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace redline
