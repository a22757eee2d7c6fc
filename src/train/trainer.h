// train() runs a training until its steps are done, a signal asks to stop, or a number is not finite. It never loses a
// saved checkpoint. Its options and its result are those of every part of it.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/signals.h"
#include "config/config.h"
#include "dist/sharing.h"
#include "model/fp8_linears.h"
#include "train/goodput.h"
#include "train/observer.h"

namespace redline::device {
class Device;
}
namespace redline::dist {
class Group;
}
namespace redline::io {
class Communicator;
}

namespace redline::train {

// The ranks of a run, as one of them sees them. Rank 0 leads: it has the run's folder and speaks.
struct Team {
  dist::Sharing sharing;
  int ranks_here = 1;                               // of all ranks, those on this machine, which share its memory
  dist::Group* group = nullptr;                     // moves tensors; this and the rest are empty in a run alone
  io::Communicator* communicator = nullptr;         // words between ranks: of the loop,
  io::Communicator* saving = nullptr;               // and of the thread that writes checkpoints
  std::function<void(const std::string&)> warn;     // to rank 0, from another
  std::function<void(std::int64_t step)> progress;  // a sign of life of this rank
  std::function<void(double seconds)> pace;         // of its last step, without waiting for others
  std::function<std::vector<double>()> paces;       // on rank 0: all ranks', by rank; 0: not known yet

  bool alone() const { return sharing.alone(); }
  bool leads() const { return sharing.rank == 0; }
};

struct TrainOptions {
  config::Config config;
  Path folder;          // of the run
  bool resume = false;  // continue from the newest whole checkpoint; from the beginning when there is none
  std::optional<std::int64_t> from_step;  // with `resume`: from that checkpoint; newer ones are left (docs/training.md)
  bool allow_change = false;              // resume also with another batch, other data or precision (docs/training.md)
  bool own_config = false;                // `config` comes from the run's config.toml and the command line alone
  bool dry_run = false;                   // everything but the first step; writes nothing
  bool batch_was_chosen = false;          // for the header: see RunHeader
  std::string restart;                    // likewise
  model::Fp8Reasons fp8_reasons;          // for the header: why each product is in fp8 or not
  double peak_flops = 0;
  std::string peak_source;
  bool peak_was_measured = false;  // not a datasheet's: a higher rate over many steps raises it
  std::vector<Observer*> observers;
  Team team;
  const device::GpuMonitor* gpu = nullptr;  // its samples go into the metrics
  std::optional<StartLaps> start;           // since the process began: its time until now is start-up
  // The numbers of signals that have come. `stop`: finish the step, leave an evaluation, save and return. `drop` comes
  // with or after it: drop the step, which has updated nothing, and save the state before it.
  const StopFlag *stop = nullptr, *drop = nullptr;
  const std::string* stop_words = nullptr;  // what `stop` was set for, where it was no signal; empty: it was one
  std::string stopped_by() const {          // "signal 15", "the file runs/a/stop"
    return stop_words && !stop_words->empty() ? *stop_words : "signal " + std::to_string(stop->load());
  }
  std::function<void()> took_folder;         // called once the folder is this run's: locked, and no other's
  double between_looks = 1;                  // seconds until the run looks again whether its folder is there
  double (*wall_clock)() = unix_seconds;     // tests let it jump
  double (*hours_clock)() = steady_seconds;  // of train.max_hours and checkpoint.minutes; tests let it run
};

enum class Outcome { finished, stopped, already_finished, dry_run };

struct TrainResult {
  Outcome outcome = Outcome::finished;
  std::int64_t steps = 0;  // done in all
  std::optional<double> eval_loss;
};

// The run cannot go on. The sentence has the step, the batch and advice. The update was not made; the last checkpoint
// stays.
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A folder that already holds a run is an error without `resume`. A loss or norm that is not finite is a NotFinite.
TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files);

}  // namespace redline::train
