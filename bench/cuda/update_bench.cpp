// Times the update of whole models, AdamW's and Muon's, as a step replays it, and holds it against its floor: FLOPs at
// the rate of a large product and bytes at that of a large copy, one behind the other. Bytes are those that the nodes
// must move once (program/planner.cpp). Then Muon's nodes by kind, each timed by itself.
//   cuda_update_bench [PRESET ...]      default: the five models of docs/results.md
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "device/cuda/device.h"
#include "device/cuda/handles.h"
#include "model/engine.h"
#include "perf/peak.h"
#include "program/program.h"

namespace redline {
namespace {

constexpr int kRuns = 20, kRounds = 3;

struct Work {
  double flops = 0, bytes = 0, seconds = 0;
};

class Kinds final : public program::NodeTimer {
 public:
  void node(const program::Node& node, double begin, double end) override {
    Work& work = by_op[std::string(program::name_of(node.op))];
    work.flops += node.cost.flops;
    work.bytes += node.cost.bytes;
    work.seconds += end - begin;
  }
  std::map<std::string, Work> by_op;
};

struct Rates {
  double product, copy;
  double floor(const Work& w) const { return w.flops / product + w.bytes / copy; }
};

void print(const std::string& name, const Work& w, const Rates& rates) {
  std::printf("  %-16s %9.3f ms %9.1f GFLOP %9.1f MB   floor %8.3f ms   %5.2f times\n", name.c_str(), 1e3 * w.seconds,
              1e-9 * w.flops, 1e-6 * w.bytes, 1e3 * rates.floor(w), w.seconds / rates.floor(w));
}

void time_model(const std::string& preset, bool muon, device::CudaDevice& device, const Rates& rates) {
  const config::Config c = config::load({.file = "",
                                         .preset = preset,
                                         .overrides = {fmt::format("optim.name={}", muon ? "muon" : "adamw"),
                                                       "train.batch_size=1", "train.accumulate=1"}});
  const model::LoweringOptions options = model::lowering_options(c, device::Kind::cuda);
  model::Engine engine(c.model, options, device);
  engine.initialise(1);
  data::Batch batch(options.batch);
  std::vector<std::int32_t> row(static_cast<std::size_t>(options.batch.seq_len));
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(c.model.vocab));
  batch.append(row);
  engine.upload(batch);
  engine.set_step(0, 1e-4, static_cast<double>(batch.pairs), 0);
  engine.micro_step(true);
  for (int i = 0; i < 3; ++i) engine.update();  // chosen, tuned and captured
  const device::cuda::Stopwatch watch(device.launch().stream);
  Work work{.seconds = 1e9};
  for (int round = 0; round < kRounds; ++round) {
    watch.start();
    for (int i = 0; i < kRuns; ++i) engine.executor().run(model::kUpdate);
    work.seconds = std::min(work.seconds, watch.stop() / kRuns);
  }
  for (const program::Node& node : engine.programs().find(model::kUpdate).nodes) {
    work.flops += node.cost.flops;
    work.bytes += node.cost.bytes;
  }
  print(muon ? "muon" : "adamw", work, rates);
  if (!muon) return;
  Kinds kinds;
  engine.executor().run(model::kUpdate, &kinds);
  for (const auto& [op, of] : kinds.by_op)
    if (of.seconds > 0.01 * work.seconds) print("- " + op, of, rates);
}

int run(std::vector<std::string> presets) {
  if (presets.empty()) presets = {"ping-95m", "gqa-180m", "cs336-350m", "llama-1.36b", "qwen3-1.8b"};
  if (device::cuda_status().cards.empty()) {
    std::puts("no GPU");
    return 0;
  }
  device::CudaDevice device;
  const Rates rates{perf::measure_peak(device).flops, perf::measure_copy_rate(device)};
  std::printf("%s, a large product: %.0f TFLOP/s, a large copy: %.0f GB/s\n", device.name().c_str(),
              1e-12 * rates.product, 1e-9 * rates.copy);
  for (const std::string& preset : presets) {
    std::printf("%s\n", preset.c_str());
    for (const bool muon : {false, true}) time_model(preset, muon, device, rates);
  }
  return 0;
}

}  // namespace
}  // namespace redline

int main(int argc, char** argv) { return redline::run(std::vector<std::string>(argv + 1, argv + argc)); }
