// The steps of a run: engine, data, schedule, evaluations and samples. What is told and what is kept goes to whoever keeps
// the run: the folder it has (train/run_folder.h), or nobody.
#pragma once

#include <memory>

#include "data/loader.h"
#include "model/engine.h"
#include "train/checkpoint.h"
#include "train/queued_step.h"
#include "train/samples.h"
#include "train/trainer.h"

namespace redline::train {

// Whom the loop tells and gives its checkpoints to. This one keeps nothing and tells nobody.
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual void tell(const Event& /*event*/) {}
  // `began` is when the loop turned to saving, on steady_seconds().
  virtual void save(model::Engine& /*engine*/, const RunState& /*state*/, double /*began*/) {}
};

// Ends the loading of weights when a signal has come; no std::exception, since nothing is wrong.
struct StoppedLoading {};

class StepLoop {
 public:
  StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper);

  // Weights that there are come before run(). Without them it begins with random ones.
  void restore(const RunState& state, const Path& checkpoint);  // a UserError where the data are others
  void make_engine();                        // where there is none yet; a UserError where the run does not fit
  void load_checkpoint(const Path& folder);  // its parameters and moments
  void load_start();                         // of model.init_from, where it is set (step_loop_start.cpp)
  model::LoadProgress tell_loading();        // throws StoppedLoading

  std::int64_t step() const { return state_.step; }                          // updates done
  bool trains() const { return !options_.dry_run && state_.step < steps_; }  // steps are left, and wanted
  void require_memory() const;                                               // a UserError where the run does not fit
  RunHeader header() const;
  const model::LoweredModel& lowered() const { return engine_ ? engine_->lowered() : lowered_; }

  TrainResult run();  // until the steps are done or a signal asks to stop

 private:
  data::LoaderOptions training_options();
  std::int64_t steps_of_run() const;
  bool stopping() const { return options_.stop && *options_.stop != 0; }
  void queue_step();
  void micro_steps(QueuedStep& sums);
  bool next_batch();
  StepMetrics finish_step();
  void raise_peak(double rate);
  void tell_dropped();
  void warn_of_repeats();
  double held_out_loss();
  void save(const data::LoaderState& loader);

  const TrainOptions& options_;
  const config::Config& config_;
  device::Device& device_;
  FileSystem& files_;
  Keeper& keeper_;
  model::LoweringOptions lowering_;
  data::Loader loader_, held_out_;
  std::optional<data::Epoch> epoch_;  // of the training data
  std::int64_t steps_;
  data::Batch batch_;
  std::optional<Samples> samples_;
  model::LoweredModel lowered_;  // until there is an engine, which has it then
  std::unique_ptr<model::Engine> engine_;
  data::LoaderState before_step_;  // where the data stood when the step that is being queued began
  std::int64_t saved_step_ = 0;    // the last one that is safe: resumed from, or saved
  QueuedStep steps_queued_[2];     // oldest first
  int queued_ = 0;
  double finished_at_ = 0;  // the last step that was waited for, or what held the next one up
  double peak_;
  bool peak_was_low_ = false;
  RunState state_;
};

}  // namespace redline::train
