// A run in the test's own process: what it told, and what it left on the disk.
#pragma once

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "io/checkpoint_folder.h"
#include "testing/watched_device.h"
#include "train/tiny_run.h"

namespace redline::train {

using testing::Recorder;
using testing::tiny_run;

struct Ran {
  TrainResult result;
  Recorder seen;
};

// `options` says when to stop, and who listens besides; the rest is set here.
inline Ran run_on(device::CpuDevice& device, TrainOptions options, const config::Config& config, const Path& folder,
                  bool resume, FileSystem& files) {
  Ran ran;
  options.config = config;
  options.folder = folder;
  options.resume = resume;
  options.peak_flops = 1e11;
  options.observers.insert(options.observers.begin(), &ran.seen);
  ran.result = train(options, device, files);
  return ran;
}

inline Ran run(const config::Config& config, const Path& folder, bool resume = false, FileSystem& files = real_files(),
               bool stops_at_once = false) {
  testing::WatchedDevice device(2);
  StopFlag stop = 0;
  if (stops_at_once) device.given = [&](int) { stop = SIGTERM; };  // one step is made and saved
  TrainOptions options;
  options.stop = &stop;
  return run_on(device, options, config, folder, resume, files);
}

inline bool any_has(const std::vector<std::string>& sentences, std::string_view words) {
  return std::ranges::any_of(sentences, [&](const std::string& s) { return s.find(words) != s.npos; });
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Every byte of parameters and moments in a checkpoint.
inline std::string tensors(const Path& run_folder, std::int64_t step) {
  const Path folder = run_folder / "checkpoints" / io::checkpoint_name(step);
  return real_files().read(folder / "model.safetensors") + real_files().read(folder / "optimizer.safetensors");
}

inline std::vector<double> losses(const Recorder& r) {
  std::vector<double> out;
  for (const StepMetrics& m : r.steps) out.push_back(m.loss);
  return out;
}

}  // namespace redline::train
