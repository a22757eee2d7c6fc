// The record of a run, read from its folder. A part that is missing, torn or of another version adds a sentence to
// `problems`, and the rest is read.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "io/json.h"
#include "report/metrics.h"
#include "report/run_goodput.h"
#include "report/run_norms.h"

namespace redline::report {

struct Event {
  double time = 0;
  std::int64_t step = 0;
  std::string kind;  // started, note, warning, skipped, rolled_back, checkpoint, finished, stopped, failed
  std::string text;
  std::int64_t from = 0;         // of rolled_back: the step that the run went back from; `step` is where it went
  double seconds = 0, held = 0;  // of checkpoint: until it was whole; of them, training stood still
};

// The settings and machine that a session recorded at its start.
struct SessionStart {
  std::int64_t first_step = 0, steps = 0, parameters = 0;
  double device_memory = 0, peak_flops = 0, time = 0;
  bool card = false;  // whether the device is a GPU
  std::string program, device, data;
  std::vector<std::pair<std::string, double>> memory;  // bytes by kind
  std::vector<std::string> header;                     // as the console showed it
};

// Text that the model wrote after a step.
struct Sample {
  std::int64_t step = 0;
  std::string prompt, text;
};

// The history of a tensor in eight bits, one value for each of RunRecord::fp8_steps. NaN: it was not there.
struct Fp8History {
  std::string name, format;
  std::vector<double> scale, amax, saturated, zero;
};

// The history of a figure with a name of the run's own (kNamedMetrics), by rising steps.
struct NamedHistory {
  std::string_view key;
  std::string name;
  std::vector<std::int64_t> steps;
  std::vector<double> values;
};

struct RunRecord {
  std::string name;
  Path folder;
  std::vector<std::string> problems;  // a sentence each

  // The row of step 0, where there is one, is the evaluation before the first step: it has no loss and no tokens.
  std::vector<std::int64_t> steps;                           // of each row, rising
  std::array<std::vector<double>, kMetrics.size()> columns;  // of each row; NaN: not known
  std::vector<NamedHistory> named;                           // in the order in which they came
  std::vector<double> tokens_so_far, seconds_so_far;         // of each row; without the time between sessions
  std::int64_t throttled_rows = 0, gpu_rows = 0;
  std::vector<std::string> throttle_reasons;  // each once

  std::vector<SessionStart> sessions;
  RunGoodput goodput;
  std::vector<Event> events;
  std::vector<Sample> samples;  // by step
  std::vector<std::int64_t> fp8_steps;
  std::vector<Fp8History> fp8;
  RunNorms norms;
  std::optional<io::Json> pipeline;  // intervals, the stage that was slowest most often, and the mean of each stage
  std::optional<io::Json> profile;
  std::vector<std::pair<std::string, std::string>> settings;  // key and value as TOML writes it
  std::string config_text;

  const std::vector<double>& column(Column c) const { return columns[c.index]; }
  std::size_t rows() const { return steps.size(); }
};

// The name of a run wherever it is shown, the last part of its folder's path: "a" of "runs/a", "runs/a/" and of "."
// inside of it.
std::string run_name(const Path& folder);

// The runs that `folder` stands for: itself where it is a run or holds none, else the runs in it, by name.
std::vector<Path> runs_of(FileSystem& files, const Path& folder);

// `folder` may also be the path of a metrics.jsonl. A folder that holds nothing of a run is a UserError.
RunRecord read_run(FileSystem& files, const Path& folder, const std::function<void(double share)>& progress = {});

}  // namespace redline::report
