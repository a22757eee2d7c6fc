// Loading weights against reading their files: REDLINE_WEIGHTS names a folder (a Hugging Face folder or a checkpoint).
// `read` is what `cat FILE > /dev/null` does; `load` is everything from the folder's name to a model that runs on the
// device that REDLINE_DEVICE names (cpu), and `build` what of it is there before the first weight is. Warm: the system
// has the files in its cache. Cold: it was asked to forget them before each round.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "infer/load.h"
#include "io/safetensors.h"

namespace redline {
namespace {

const char* folder() { return std::getenv("REDLINE_WEIGHTS"); }

struct Weights {
  std::vector<Path> paths;
  std::uint64_t bytes = 0;
  std::int64_t elements = 0;
};

Weights find_weights() {
  Weights found;
  const io::WeightFiles weights(real_files(), infer::open_checkpoint(real_files(), folder()).folder);
  for (const auto& file : weights.files()) {
    found.paths.push_back(file.reader->path());
    for (const io::StoredTensor& t : file.reader->tensors()) found.elements += t.elements();
  }
  found.bytes = weights.bytes();
  return found;
}

// What was written but not yet on the disk stays in the cache, and so do pages that someone has mapped.
void forget(const Weights& weights) {
  for (const Path& path : weights.paths) {
    const int file = ::open(path.c_str(), O_RDONLY);
    if (file < 0 || ::fsync(file) != 0 || ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0)
      fail_machine("{} cannot be dropped from the system's cache", path.string());
    ::close(file);
  }
}

// `round` is what is measured; the model that it returns, if any, goes away unmeasured.
template <class Round>
void measure(benchmark::State& state, bool cold, const Round& round) {
  if (!folder()) return state.SkipWithError("REDLINE_WEIGHTS names no folder");
  const Weights weights = find_weights();
  for (auto _ : state) {
    state.PauseTiming();
    if (cold) forget(weights);
    state.ResumeTiming();
    std::unique_ptr<model::Engine> engine = round(weights);
    state.PauseTiming();
    engine.reset();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(weights.bytes));
}

void read_files(benchmark::State& state, bool cold) {
  measure(state, cold, [](const Weights& weights) {
    for (const Path& path : weights.paths) real_files().read_pieces(path, [](std::span<const std::byte>) {});
    return nullptr;
  });
}

std::unique_ptr<device::Device> open_device() {
  const char* name = std::getenv("REDLINE_DEVICE");
  return device::open_device(name ? name : "cpu");
}

model::LoweringOptions options_for(const device::Device& device) {
  model::LoweringOptions options = model::lowering_options({}, device.kind());
  options.batch = {1, 16, 1};
  options.training = false;
  return options;
}

void build(benchmark::State& state) {
  const auto device = open_device();
  measure(state, false, [&](const Weights&) {
    const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), folder());
    infer::check_size(checkpoint);
    auto engine = std::make_unique<model::Engine>(checkpoint.model, options_for(*device), *device);
    device->wait();
    return engine;
  });
  state.counters.erase("bytes_per_second");  // of weights, and none was read
}

void load(benchmark::State& state, bool cold) {
  const auto device = open_device();
  measure(state, cold, [&](const Weights&) {
    const infer::Checkpoint checkpoint = infer::open_checkpoint(real_files(), folder());
    auto engine = infer::load_engine(checkpoint, options_for(*device), *device);
    device->wait();
    state.counters["arena_mib"] = static_cast<double>(engine->executor().arena_bytes()) * 0x1p-20;
    return engine;
  });
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_mib"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

// What no loading can do without: the first touch of as much memory as the weights take in f32, by all threads. On a
// virtual machine it may differ by five times, as the host has taken unused memory back or not.
void touch(benchmark::State& state) {
  if (!folder()) return state.SkipWithError("REDLINE_WEIGHTS names no folder");
  device::CpuDevice device;
  const std::int64_t bytes = find_weights().elements * static_cast<std::int64_t>(sizeof(float));
  for (auto _ : state) {
    auto memory = device.allocate(bytes);
    device.fill(memory->data(), 0, bytes);
    state.PauseTiming();
    memory.reset();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

BENCHMARK(touch)->Name("touch")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(build)->Name("build")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(read_files, warm, false)->Name("read/warm")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(load, warm, false)->Name("load/warm")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(read_files, cold, true)->Name("read/cold")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(load, cold, true)->Name("load/cold")->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace redline
