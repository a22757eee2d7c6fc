// The steps of a run: engine, data, schedule, evaluations and samples. Events and checkpoints go to a Keeper: the run's
// folder (train/trainer.cpp), or one that keeps nothing. The phases of the loop are in train/step_phases.h.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "train/observer.h"

namespace redline::data {
class Corpus;
struct LoaderState;
}  // namespace redline::data
namespace redline::device {
class Device;
}
namespace redline::model {
class Engine;
struct LoweredModel;
}  // namespace redline::model

namespace redline::train {

struct CountedEpoch;
struct GoBack;
struct RunState;
struct TrainOptions;
struct TrainResult;
class StepLoop;

// The receiver of the loop's events and checkpoints. This base class keeps nothing and tells no observer.
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual void tell(const Event& /*event*/) {}
  // Asked once a step. True: the kept files are gone, and the state must be saved now.
  virtual bool lost() { return false; }
  virtual bool saves() const { return false; }  // whether save() does anything: memory is planned for it
  // Begins to save the state, and may go on while the next steps run. `began` is the start of the save, on
  // steady_seconds().
  virtual void save(model::Engine& /*engine*/, const RunState& /*state*/, double /*began*/) {}
  // Reports a save that has ended and returns its outcome; nothing where none has. before_next and at_end wait for one
  // that is under way; at_end a save that failed is an error.
  enum class Wait { no, before_next, at_end };
  struct SaveOutcome {
    bool written = false;
    double seconds = 0;  // until it was on the disk
  };
  virtual std::optional<SaveOutcome> collect_save(Wait /*wait*/) { return {}; }
  virtual void let_go() {}  // of the engine, which goes next: waits for a save that is under way
  // Loads the checkpoint of that step, or an older one where it is missing, into the loop's engine, and returns its
  // state. Newer checkpoints leave the run. Returns nothing where there is no checkpoint.
  virtual std::optional<RunState> go_back(StepLoop& loop, std::int64_t step);
};

class StepLoop {
 public:
  StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper);
  ~StepLoop();

  // Weights are loaded before run(). Without them the run begins with random ones.
  bool data_changed(const RunState& before, const Path& checkpoint);  // a UserError where it may not
  // Held-out losses from here on cannot be compared with those before restore(), which is called after it.
  void losses_are_others();
  bool forgets_losses() const;
  void restore(const RunState& state);  // of the checkpoint, without the data's identity
  void make_engine();                   // once; a UserError where the run does not fit
  // Loads parameters and moments, and the scales of operands in eight bits where they belong to this run's products;
  // otherwise a note tells that they do not. `before` is the checkpoint's configuration, if any.
  void load_checkpoint(const Path& folder, const config::Config* before);
  void load_start();  // loads model.init_from, where it is set
  std::function<void(std::uint64_t done, std::uint64_t of)>
  tell_loading();  // throws Interrupted once a signal has come

  std::int64_t step() const;                       // updates done
  bool trains() const;                             // steps are left to make, and this is no dry run
  std::string nothing_left() const;                // why, where another key than the number of steps ends it
  std::optional<double> batches_of_epoch() const;  // of the training data, where it is known
  const std::optional<CountedEpoch>& counted_epoch() const;
  void require_memory() const;  // a UserError where the run does not fit
  RunHeader header() const;
  std::vector<std::string> notes_on_data() const, warnings_on_data() const;  // for the run's beginning
  const data::Corpus& documents() const;                                     // of training
  const model::LoweredModel& lowered() const;

  TrainResult run();  // until the steps are done or a signal asks to stop

 private:
  struct Phases;
  bool at_end() const;
  void begin();
  TrainResult run_steps();
  bool queue_step();
  [[noreturn]] void end_by(const std::exception_ptr& error, const data::LoaderState& loader);  // saves what there is
  void finish_steps();
  void go_back(const GoBack& because);
  bool folder_lost();
  std::string how_it_stopped(bool dropped, bool left) const;

  std::unique_ptr<Phases> phases_;
  double began_ = 0;             // run(), on steady_seconds()
  std::int64_t first_step_ = 0;  // and the updates that were done by then
  bool going_back_ = false;      // signals do not stop the loading of weights
};

}  // namespace redline::train
