// The one search over settings. Candidates are lists of configuration keys, or ways to cut a step into micro-batches.
// Each is planned, or timed on a Bench within a budget, and a row of a table keeps what came of it. Searches differ in
// where their candidates come from and in how they judge the rows: choose() and train.batch_size = "auto"
// (perf/batch_size.h), the ladder (perf/ladder.h), tune (perf/tune.h), and the remedies of `redline doctor --try`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/signals.h"
#include "config/config.h"
#include "device/device.h"
#include "perf/measure.h"
#include "perf/plan.h"

namespace redline::perf {

using KeyValues = std::vector<std::string>;  // "kernels.graphs=auto"
std::string key_of(const std::string& pair);
// The keys with others put over them.
KeyValues over(KeyValues keys, const KeyValues& others);
// The rows of a micro-batch and the micro-batches of a step.
KeyValues keys_of(const Setting& setting);

// Loads the user's configuration with keys changed. A bad key is a UserError.
using LoadConfig = std::function<config::Config(const KeyValues& keys)>;

// The questions of a search: what a configuration reaches, whether it fits, which batch sizes are worth a look. A
// device answers them, or a test.
struct Bench {
  device::Kind kind = device::Kind::cpu;
  int ranks = 1;  // that measure together
  std::function<Measured(const config::Config& config, double seconds)> measure;
  std::function<bool(const config::Config& config)> fits;
  std::function<std::vector<Setting>(const config::Config& config)> settings;  // by the plan, the best first
};
// The device, the flag and the monitor outlive the bench.
Bench bench_on(device::Device& device, const MeasureOptions& options);

// The work that a configuration gives a kind of device, as texts: two that are equal show that a setting changes
// nothing there. No device is needed.
struct Workload {
  std::string program;    // a hash of every node of a step: its operands' types, shapes and places, how it computes
  std::string execution;  // how programs are given to the device
  std::string products;   // how the algorithms of products are found
  std::string batches;    // how documents fill batches
  std::string loader;     // who makes them
  std::string ranks;      // how several share the work
  bool operator==(const Workload&) const = default;
};
Workload workload_of(const config::Config& config, device::Kind kind, int ranks = 1);

enum class TrialState {
  measured,
  failed,         // tried, and it cannot run here
  planned,        // not tried: the plan's word stands
  no_effect,      // the device does the same without it
  not_separable,  // it has no slow twin
  absent,         // redline has no such optimisation
};
std::string_view name_of(TrialState state);

// A row of the table: a candidate and what came of it.
struct Trial {
  std::string name;
  KeyValues keys;  // its switches
  std::string about;
  TrialState state = TrialState::measured;
  std::string reason;  // why it was not measured, or did not stay
  Setting setting;     // of a search over batch sizes, with the tokens a second that the plan expects of full rows
  double expected = 0;
  Measured measured;
  // Tokens a second, as a factor of the row that stayed before; with `without`, of the full step.
  double over_before = 0;
  double over_first = 0;  // as a factor of the first row
  bool kept = false;      // in the rows that follow
  bool changes_loss = false;
  double saved_bytes = 0;  // of a step, for a row that is not separable
};

struct SearchOptions {
  double seconds = 120;        // in all, about: a candidate gets its share of what is left
  double each = 0;             // or so many for every candidate, whatever that takes in all
  double least = 0.1;          // that a candidate is timed for, however little time is left
  bool any_recompute = false;  // of choose(): even where the configuration sets it
  std::size_t runners_up = 4;  // of choose(): settings that are planned beside the best of each kind
  Filling filling = {};        // of plans: what rows hold
  const StopFlag* stop = nullptr;
  // Called before each candidate.
  std::function<void(const std::string& name, std::size_t number, std::size_t of)> progress = {};
};

// The turns of a search. Where the flag is set, the next turn, or a measurement under way, ends with an Interrupted.
class Search {
 public:
  explicit Search(const SearchOptions& options, Bench bench = {}, LoadConfig load = {});

  // The candidates that are still to come: so many until this share of the time has passed, and so many after it.
  void expect(std::size_t candidates, double share_of_time = 1, std::size_t later = 0);
  void leave_out() { next_ -= next_ > 0; }  // one of them

  // Begins the turn of a candidate, and returns the seconds for which it may be timed: half of its share, since the
  // other half goes before the timed steps.
  double begin(const std::string& name);

  // Takes a turn and fills in what was measured, or why it could not be.
  void measure(Trial& row, const KeyValues& keys);
  void measure(Trial& row, const config::Config& config);

  // Whether keys change what the device does. Where they cannot be loaded, they do: the measurement says what is wrong.
  bool has_effect(const KeyValues& keys, const KeyValues& change) const;

  config::Config load(const KeyValues& keys) const { return load_(keys); }
  const Bench& bench() const { return bench_; }

 private:
  void finish(Trial& row, Measured measured) const;

  const SearchOptions options_;
  const Bench bench_;
  const LoadConfig load_;
  const double start_;
  double share_ = 1;
  std::size_t begun_ = 0, next_ = 0, later_ = 0;  // turns: begun, to come, and to come after the share of the time
};

}  // namespace redline::perf
