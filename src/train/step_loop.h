// The steps of a run: engine, data, schedule, evaluations and samples. Events and checkpoints go to a Keeper: the run's
// folder (train/run_folder.h), or one that keeps nothing.
#pragma once

#include <memory>

#include "data/loader.h"
#include "model/engine.h"
#include "train/checkpoint.h"
#include "train/ends.h"
#include "train/goodput.h"
#include "train/gradient_noise.h"
#include "train/held_out.h"
#include "train/options.h"
#include "train/queued_step.h"
#include "train/samples.h"

namespace redline::train {

class StepLoop;

// The receiver of the loop's events and checkpoints. This base class keeps nothing and tells nobody.
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual void tell(const Event& /*event*/) {}
  // Asked once a step. True: the kept files are gone, and the state must be saved now.
  virtual bool lost() { return false; }
  // Called after the first finished step, when all memory of steps is in use: allocates the memory that saves need in
  // addition.
  virtual void get_ready(model::Engine& /*engine*/) {}
  // Begins to save the state, and may go on while the next steps run. `began` is the start of the save, on
  // steady_seconds().
  virtual void save(model::Engine& /*engine*/, const RunState& /*state*/, double /*began*/) {}
  virtual void before_update() {}  // before an update is queued: a save may still be copying the state
  // Reports a finished save and returns its outcome. before_next and last wait for a save that is under way; a last
  // save that failed is an error.
  enum class Settle { if_over, before_next, last };
  struct SaveOutcome {
    bool written = false;
    double seconds = 0;  // until it was on the disk
  };
  virtual std::optional<SaveOutcome> settle(Settle /*which*/) { return {}; }
  // Loads the checkpoint of that step, or an older one where it is missing, into the loop's engine, and returns its
  // state. Newer checkpoints leave the run. Returns nothing where there is no checkpoint.
  virtual std::optional<RunState> go_back(StepLoop& /*loop*/, std::int64_t /*step*/) { return {}; }
};

class StepLoop {
 public:
  StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper);

  // Weights are loaded before run(). Without them the run begins with random ones.
  bool data_are_others(const RunState& before,
                       const Path& checkpoint);  // step_loop_data.cpp: a UserError, if not allowed
  void restore(const RunState& state);           // of the checkpoint, without the data's identity
  void make_engine();                            // once; a UserError where the run does not fit
  // Loads parameters and moments, and the scales of operands in eight bits where they belong to this run's products;
  // otherwise a note tells that they do not. `before` is the checkpoint's configuration, if any.
  void load_checkpoint(const Path& folder, const config::Config* before);
  void load_start();                   // loads model.init_from, where it is set (step_loop_start.cpp)
  model::LoadProgress tell_loading();  // throws Interrupted once a signal has come

  std::int64_t step() const { return state_.step; }               // updates done
  bool trains() const { return !options_.dry_run && !at_end(); }  // steps are left to make
  // Why, where another key than the number of steps ends it.
  std::string nothing_left() const { return ends_.nothing_left(); }
  std::optional<double> batches_of_epoch() const;  // of the training data, where it can be told
  void require_memory() const;                     // a UserError where the run does not fit
  RunHeader header() const;
  const data::Corpus& documents() const { return loader_.corpus(); }  // of training
  const model::LoweredModel& lowered() const { return engine_ ? engine_->lowered() : lowered_; }

  TrainResult run();  // until the steps are done or a signal asks to stop

 private:
  void require_programs() const;  // for the first steps, which may be smaller
  data::Loader open_loader();
  data::LoaderOptions training_options();
  std::int64_t steps_of_run() const;
  bool at_end() const { return ends_.over() || state_.step >= ends_.steps(); }
  bool asked_to_stop() const { return options_.stop && *options_.stop != 0; }
  // Ranks stop after the same step, the first whose result tells that one of them was asked to stop.
  bool stopping() const { return alone() ? asked_to_stop() : others_stop_; }
  bool alone() const { return options_.team.alone(); }
  std::int64_t ranks() const { return options_.team.sharing.ranks; }
  TrainResult run_steps();
  bool folder_lost();
  void tell_alive() const {
    if (options_.team.progress) options_.team.progress(state_.step);
  }
  bool queue_step();
  // Handles an update that was not made (step_loop_guard.cpp).
  void leave_out(const QueuedStep& step, double loss, const UpdateResult& update);
  void go_back(const GoBack& because);
  void pass_over_batches();
  void forget_oldest();                           // of the queued steps
  [[noreturn]] void refuse(std::string trouble);  // goes back, or ends the run
  std::string advice() const;
  void micro_steps(QueuedStep& sums);
  bool looks_at_fp8(std::int64_t step) const;
  bool looks_at_norms(std::int64_t step) const;
  NormsObservation norms_of(const QueuedStep& step, const UpdateResult& update);
  std::size_t micro_steps_ahead() const;
  bool next_batch();
  void finish_steps();
  StepMetrics finish_step();
  void restart_clock();
  RankPaces paces(double step_seconds);
  void raise_peak(double rate);
  void tell_dropped();
  void warn_of_repeats();
  bool are_others(data::DataWatch& watch, const data::DataIdentity& before, std::string_view key,
                  const Path& checkpoint);
  void tell_changed_files();
  struct HeldOutLosses {
    std::vector<HeldOutLoss> weights;  // of every held-out set; `ends` use the first
    std::optional<double> average;     // of the first set, where there is an average and it is not the weights
  };
  // Empty where a signal came first.
  HeldOutLosses held_out_losses();
  std::optional<double> held_out_loss_of_average();
  std::vector<HeldOutLoss> evaluate_held_out(bool first_alone);
  void tell_mixture();
  void write_samples(std::int64_t step);
  void tell_nothing_learned(std::int64_t step);
  std::string how_it_stopped(bool dropped) const;
  Finished ending(Outcome outcome, std::string sentence) const;
  void get_ready_to_save();  // once
  void save(const data::LoaderState& loader);
  void settle(Keeper::Settle which);

  const TrainOptions& options_;
  const config::Config& config_;
  device::Device& device_;
  FileSystem& files_;
  Keeper& keeper_;
  std::shared_ptr<Goodput> goodput_ = std::make_shared<Goodput>(options_.began);
  model::LoweringOptions lowering_;
  data::Loader loader_;
  HeldOut held_out_;
  data::DataWatch watch_;
  std::optional<data::DataWatch> eval_watch_;  // of data.eval, where it is set
  std::optional<data::Epoch> epoch_;           // of the training data
  Ends ends_;
  data::Batch batch_;
  std::optional<Samples> samples_;
  model::LoweredModel lowered_;  // until there is an engine, which has it then
  std::unique_ptr<model::Engine> engine_;
  data::LoaderState before_step_;  // where the data stood when the step that is being queued began
  bool ready_to_save_ = false;
  std::int64_t safe_step_ = 0;   // the last one that is on the disk: resumed from, or saved
  std::int64_t saved_step_ = 0;  // the same, or the one that is being saved
  QueuedStep steps_queued_[2];   // oldest first
  int queued_ = 0;
  bool rehearsed_;                 // the card has chosen its kernels and captured its graphs, or need not
  double micro_step_seconds_ = 0;  // of the last step that was waited for
  double began_ = 0;               // run(), on steady_seconds()
  std::int64_t first_step_ = 0;    // and the updates that were done by then
  double peak_;
  std::vector<double> rates_;  // FLOPs a second of the last steps, where they may raise the peak
  bool peak_was_low_ = false;
  RunState state_;
  Guard guard_{config_.guard, state_.guard};
  NoiseScale noise_;          // of gradients, over the looks of this session
  double waited_ = 0;         // for ranks, when the step before ended
  bool others_stop_ = false;  // a rank was asked to, and all know
  bool going_back_ = false;   // signals do not stop the loading of weights
};

}  // namespace redline::train
