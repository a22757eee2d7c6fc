// A run as its folder shows it: RunRecord reads the whole of it, RunProgress follows one that another process trains.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "io/json_fwd.h"
#include "report/figures.h"
#include "report/json_rows.h"
#include "report/metrics.h"
#include "train/goodput.h"

namespace redline::report {

struct SessionGoodput {
  double began = 0, ended = 0;  // seconds since 1970: its process, and its last sign of life
  std::int64_t first_step = 0;  // updates that were done before it
  train::Account account = {};  // work that a later session repeated counts as lost
  double until_next = 0;        // seconds in which nothing ran
};

// Where the time of a run went, over all its sessions in goodput.jsonl, with the time between sessions and the work
// that was lost to crashes.
struct RunGoodput {
  std::vector<SessionGoodput> sessions;  // none: not known

  // The account of the whole run. Tokens and joules are of the sessions that measured energy.
  train::Account account() const;
};

RunGoodput read_goodput(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// The members "goodput", and "energy" where it is known, of a run. Empty without sessions.
io::Json to_json(const RunGoodput& goodput);

// Figures by name at each look at a run's tensors. A History has a name, and columns() with one value for each look;
// NaN: not known, or it was not there.
template <class History>
struct Looks {
  std::vector<std::int64_t> steps;
  std::vector<History> histories;  // in the order in which they were first seen
  std::map<std::string, std::size_t> index;

  // Looks of this step or later ones go: a later row is the one that holds.
  void begin(std::int64_t step) {
    while (!steps.empty() && steps.back() >= step) steps.pop_back();
    fill();
    steps.push_back(step);
    fill();
  }
  History& of(const std::string& name) {
    const auto [it, is_new] = index.try_emplace(name, histories.size());
    if (is_new) histories.emplace_back().name = name;
    if (is_new) fill();
    return histories[it->second];
  }

 private:
  void fill() {
    for (History& of : histories)
      for (std::vector<double>* column : of.columns()) column->resize(steps.size(), kUnknown);
  }
};

// A kind of tensor, "qkv" of "layer 3/qkv": medians over the layers at each look.
struct KindNorms {
  std::string name;
  std::vector<double> gradient, weight, change;  // change: norm of the update over that of the weight
  std::array<std::vector<double>*, 3> columns() { return {&gradient, &weight, &change}; }
};

struct LastNorms {
  std::string name;
  double gradient = 0, weight = 0, update = 0;  // NaN: not known
  double change() const { return weight > 0 ? update / weight : 0; }
};

// Norms by tensor, from norms.jsonl.
struct RunNorms {
  Looks<KindNorms> kinds;
  std::vector<LastNorms> last;  // all tensors at the last look
};

// Empty where there is no such file. Each line that cannot be read adds a sentence to `problems`.
RunNorms read_norms(FileSystem& files, const Path& path, std::vector<std::string>& problems);

// Loads of the experts of a layer at the looks at them, from router.jsonl.
struct LayerLoads {
  std::int64_t layer = 0;
  std::vector<double> entropy;
  std::vector<std::vector<float>> loads;  // by look; 1 is an even share
};
struct RunRouters {
  std::vector<std::int64_t> steps;  // of the looks
  std::vector<LayerLoads> layers;   // rising, the same at every look

  std::size_t experts() const { return layers.empty() ? 0 : layers[0].loads[0].size(); }
};

// A tensor in eight bits.
struct Fp8History {
  std::string name, format;
  std::vector<double> scale, amax, saturated, zero;
  std::array<std::vector<double>*, 4> columns() { return {&scale, &amax, &saturated, &zero}; }
};

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
  bool card = false;        // whether the device is a GPU
  bool trained_on = false;  // the set whose loss is the run's, so that it is not held out
  std::int64_t ranks = 1;
  std::string program, device, data;
  std::string restart;  // "restart 1 by torchrun"; empty: nobody's launcher started it again
  std::vector<std::pair<std::string, double>> memory;  // bytes by kind
  std::vector<std::string> header;                     // as the console showed it
};

// Text that the model wrote after a step.
struct Sample {
  std::int64_t step = 0;
  std::string prompt, text;
};

// The history of a figure with a name of the run's own (kNamedMetrics), by rising steps.
struct NamedHistory {
  std::string_view key;
  std::string name;
  std::vector<std::int64_t> steps;
  std::vector<double> values;
};

// A part that is missing, torn or of another version adds a sentence to `problems`, and the rest is read.
struct RunRecord {
  std::string name;
  Path folder;
  bool running = false;               // a process trains into the folder
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
  Looks<Fp8History> fp8;
  RunNorms norms;
  RunRouters routers;
  std::shared_ptr<const io::Json> pipeline;  // intervals, the stage that was slowest most often, the mean of each stage
  std::shared_ptr<const io::Json> profile;
  std::vector<std::pair<std::string, std::string>> settings;  // key and value as TOML writes it
  std::string config_text;

  const std::vector<double>& column(Column c) const { return columns[c.index]; }
  std::size_t rows() const { return steps.size(); }
};

// The name of a run wherever it is shown, the last part of its folder's path: "a" of "runs/a", "runs/a/" and of "."
// inside of it.
std::string run_name(const Path& folder);

// Whether a process holds the lock of a run's folder.
bool is_running(FileSystem& files, const Path& folder);

// The runs that `folder` stands for: itself where it is a run or holds none, else the runs in it, by name.
std::vector<Path> runs_of(FileSystem& files, const Path& folder);

// `folder` may also be the path of a metrics.jsonl. A folder that holds nothing of a run is a UserError.
RunRecord read_run(FileSystem& files, const Path& folder, const std::function<void(double share)>& progress = {});

class RunProgress {
 public:
  explicit RunProgress(const Path& folder) : metrics_(folder / "metrics.jsonl"), events_(folder / "events.jsonl") {}

  void look();

  std::int64_t step() const { return step_; }    // updates that are done
  std::int64_t steps() const { return steps_; }  // of the whole run; 0: not known
  double loss() const { return loss_; }          // of the last step; NaN: none, or not finite
  // Held-out losses by step, without the one before the first step. A loss that is not finite is infinity.
  const std::map<std::int64_t, double>& evaluations() const { return evaluations_; }
  // The mean of this session, evaluations and saves included. NaN: not known yet.
  double seconds_a_step() const;

 private:
  void take_metrics(const io::Json& row);
  void take_event(const io::Json& row);

  NewRows metrics_, events_;
  std::int64_t step_ = 0, steps_ = 0;
  double loss_ = kUnknown, time_ = 0;
  std::int64_t first_step_ = 0;  // where this session began, and when
  double first_time_ = 0;
  std::map<std::int64_t, double> evaluations_;
};

}  // namespace redline::report
