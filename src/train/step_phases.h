// The phases of a step loop, for it alone: each is a type with its own state. RunData gives batches, Steps queues
// updates and takes their figures, Rescue answers updates that were not made, Asides evaluates and writes samples, and
// Saves gives the state to the keeper. StepLoop (train/step_loop.h) starts them, calls them in turn and ends the run.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/step_state.h"
#include "data/identity.h"
#include "data/loader.h"
#include "model/engine.h"
#include "model/evaluate.h"
#include "model/generate.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"
#include "train/step_loop.h"
#include "train/trainer.h"

namespace redline::train {

// What all phases share: the run's settings, its state between two steps, and its engine.
struct Session {
  Session(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper);

  bool alone() const { return options.team.alone(); }
  std::int64_t ranks() const { return options.team.sharing.ranks; }
  std::int64_t groups() const { return options.team.sharing.groups(); }  // of ranks: each has a batch a micro-step
  bool asked_to_stop() const { return options.stop && *options.stop != 0; }
  // Ranks stop after the same step, the first whose result tells that one of them was asked to stop.
  bool stopping() const { return alone() ? asked_to_stop() : a_rank_stops; }
  // Rank 0's clock asks for a checkpoint. Ranks hear of it with the result of a step, as they do of a stop.
  bool minutes_are_over() const {
    const double minutes = config.checkpoint.minutes;
    return options.team.leads() && minutes > 0 && options.hours_clock() - saved_at >= 60 * minutes;
  }
  bool save_is_due() const { return alone() ? minutes_are_over() : state.step == save_after; }
  void tell_alive() const {
    if (options.team.progress) options.team.progress(state.step);
  }
  const model::LoweredModel& lowered() const { return engine ? engine->lowered() : to_bind; }
  void make_engine();                // once; a UserError where the run does not fit
  bool make_engine_with_snapshot();  // false where there is no room for a copy of the state
  void require_memory() const;       // a UserError where the run does not fit
  void tell_ready();                 // what the start took, where somebody has waited for it

  const TrainOptions& options;
  const config::Config& config;
  device::Device& device;
  FileSystem& files;
  Keeper& keeper;
  std::shared_ptr<Goodput> goodput;
  StartLaps start;
  model::LoweringOptions lowering;
  model::LoweredModel to_bind;  // until there is an engine, which has it then
  std::unique_ptr<model::Engine> engine;
  RunState state;
  bool a_rank_stops = false;  // one was asked to, and all know
  double saved_at = 0;        // on the clock of checkpoint.minutes: the last save, or the start; rank 0's counts
  // The step after which ranks save by that clock: the one after the first whose result tells of it. A rank that runs
  // ahead has queued that one when it hears of it, and a rank that does not has yet to.
  std::int64_t save_after = -1;
};

// The held-out sets of a run, each with its own loader.
class HeldOut {
 public:
  HeldOut(const config::Config& config, data::BatchShape shape, const dist::Sharing& sharing);

  // The corpus of the first set. This set ends a run (train.target_loss, train.patience) and gives prompts to samples.
  const data::Corpus& corpus() const { return sets_[0].loader->corpus(); }
  std::optional<data::EpochSize> epoch_size() const { return sets_[0].loader->epoch_size(); }
  std::vector<const data::Corpus*> corpora() const;  // of all of them
  // A warning for each set that has files or documents of the training data, after its name. `files` are those of the
  // data that are trained on.
  std::vector<std::pair<std::string, std::string>> trained_on(const data::Corpus& training,
                                                              const std::vector<Path>& files) const;
  const std::string& first() const { return sets_[0].name; }
  bool named() const { return named_; }  // data.eval names sets

  // Evaluates each set from its beginning, up to train.eval_tokens or train.eval_batches of each, the first set first.
  // With `first_alone` only that one. `of` is what the batches so far let expect.
  std::vector<HeldOutLoss> evaluate(model::Engine& engine,
                                    const std::function<void(std::int64_t done, std::int64_t of)>& progress,
                                    io::Communicator* ranks, bool first_alone = false);

 private:
  struct Set {
    std::string name;
    std::unique_ptr<data::Loader> loader;
    model::BytesOfIds bytes;
  };
  const std::int64_t tokens_, batches_;  // of one evaluation; one of them is 0
  std::vector<Set> sets_;
  bool named_;
};

// Thrown where the training data cannot be read: the steps before are saved, and then the error itself ends the run.
struct BrokenData {
  std::exception_ptr error;
};

// The data of a run, and their files: held against those of a checkpoint, and looked after while the run trains.
class RunData {
 public:
  explicit RunData(Session& session);

  const data::Corpus& corpus() const { return loader_.corpus(); }
  const data::LoaderState& state() const { return loader_.state(); }
  const data::LoaderState& before_step() const { return before_step_; }  // when the step that is being queued began
  const std::optional<data::Epoch>& epoch() const { return epoch_; }     // of the training data
  const std::optional<CountedEpoch>& count_of_epoch() const { return counted_; }  // where it had to be counted
  HeldOut& held_out() { return held_out_; }
  std::optional<data::EpochSize> held_out_size() const { return held_out_.epoch_size(); }
  data::Loader& loader() { return loader_; }
  std::int64_t slots() const { return batch_.shape.tokens(); }  // of a micro-batch

  void require_vocabulary() const;    // a UserError where the model has too few ids
  void watch_held_out();              // where they have files of their own
  std::int64_t steps_of_run() const;  // epochs are known as steps before the first one: the rate falls towards the last
  void restore(const data::LoaderState& state) { loader_.restore(state); }

  // Whether the training data are others than those of the checkpoint; a UserError where they may not be. `new_losses`
  // is called where the held-out losses cannot be compared with those before.
  bool compare(const RunState& before, const Path& checkpoint, const std::function<void()>& new_losses);
  // Sentences for the run's beginning: files that are left aside by their names; sets that are not held out, and text
  // that is read as bytes by a model of many more ids.
  std::vector<std::string> notes() const;
  std::vector<std::string> warnings() const;
  std::vector<std::string> trained_on() const;  // names of the sets that are not held out
  bool loss_trained_on() const;                 // the first set, whose loss is the run's, is one of them
  void start_reading();                         // hashes the files on a thread
  void identify(RunState& state);               // for a checkpoint: what the data were when they were opened
  void tell_changed_files();
  void tell_repeats() const;  // the step that was drawn begins to read the data a second time
  void tell_end();            // data that no step has seen, and the shares of a mixture

  void begin_step() { before_step_ = loader_.state(); }
  data::Batch& next();  // this rank's next micro-batch; throws BrokenData

 private:
  data::Loader open_loader();
  data::LoaderOptions training_options();
  std::optional<data::Epoch> find_epoch();
  CountedEpoch count() const;
  bool differs(data::DataWatch& watch, const data::DataIdentity& before, std::string_view key, const Path& checkpoint);

  Session& session_;
  data::Loader loader_;
  HeldOut held_out_;
  data::DataWatch watch_;
  std::optional<data::DataWatch> eval_watch_;  // of held-out files, where training does not read them in part
  std::vector<std::pair<std::string, std::string>> trained_on_;  // sets of them that it reads after all, with a warning
  std::optional<CountedEpoch> counted_;
  std::optional<data::Epoch> epoch_;
  data::Batch batch_;
  data::LoaderState before_step_;
};

// A step that the device has been given and has not reported yet: its sums over micro-batches, and its figures once it
// has.
struct QueuedStep {
  std::int64_t step = 0;  // counted from 1
  std::int64_t draw = 0;  // of its batches, from 0: those that were passed over count as well
  double lr = 0;
  std::int64_t micro_batches = 1;  // of each rank
  std::int64_t pairs = 0, real_tokens = 0;
  double flops = 0, flops_palm = 0, data_wait = 0;
  std::int64_t truncated_tokens = 0;       // of the run so far
  std::optional<double> epoch;             // reached by it
  std::vector<data::SourceShare> sources;  // of a mixture, up to it
  std::vector<std::int64_t> documents;     // of the source, in its batches
  std::optional<Fp8Observation> fp8;       // where the step was looked at
  std::optional<model::NormSums> norms;    // where they were looked at

  void clear();
  double learned() const;                      // share of the documents' tokens that are targets
  void take_counts(const StepCounts& counts);  // of all ranks, once they are known

  // The figures that the step itself gives; `slots` are the token slots of its batches. A peak of 0: no mfu.
  StepMetrics metrics(double loss, double norm, const model::StepTime& time, std::int64_t slots, double peak) const;

  // The reason why its update was not made, and on which documents; without a full stop.
  std::string trouble(double loss, const UpdateResult& update) const;
};

// The noise of a step's gradient: the batch at which its noise is as large as itself (the noise scale of McCandlish
// and others, "An Empirical Model of Large-Batch Training"). A gradient of n pairs is their sum; with the mean
// gradient G of one pair and the trace S of its covariance
//   E |g|^2 = n^2 |G|^2 + n S,
// so that gradients of two sizes give both. The scale is S / |G|^2, in pairs: tokens.

// Some gradients of about as many pairs each.
struct GradientSize {
  double squares = 0;  // sum of their squared norms
  double pairs = 0;    // of all of them
  double count = 1;    // how many they are
};

// Estimates without bias; one look's may well be below zero.
struct NoiseEstimate {
  double signal = 0;  // |G|^2
  double noise = 0;   // S
};
// Empty where both have the same size, or a number is not finite.
std::optional<NoiseEstimate> estimate_noise(const GradientSize& small, const GradientSize& large);

// Means of both over the last looks, and then their ratio: the ratio of single ones would have a bias.
class NoiseScale {
 public:
  void add(const NoiseEstimate& look);
  std::optional<double> pairs() const;  // empty where a mean is not above zero

 private:
  static constexpr double kReach = 20;  // looks
  NoiseEstimate mean_;
  double looks_ = 0;
};

// Thrown to the step loop: the run goes back to a checkpoint.
struct GoBack {
  std::string why;           // the beginning of the sentence that would have ended the run
  bool last_update = false;  // the last update is to blame, and it was made
};

// The answers to an update that was not made: leave it out, go back to a checkpoint, or end with advice.
class Rescue {
 public:
  explicit Rescue(Session& session) : session_(session), guard_(session.config.guard, session.state.guard) {}

  Guard& guard() { return guard_; }
  // A step's update has ended. One that was not made is a warning; where the guard bears no more of them, a GoBack is
  // thrown, or a NotFinite.
  void judge(const QueuedStep& step, double loss, const UpdateResult& update);
  [[noreturn]] void refuse(std::string trouble);  // parameters that are broken: goes back, or ends the run

 private:
  std::string advice() const;

  Session& session_;
  Guard guard_;
};

// The steps themselves. A device that runs ahead has two of them at a time.
class Steps {
 public:
  Steps(Session& session, RunData& data, const Ends& ends, Rescue& rescue);

  int queued() const { return queued_; }
  // Gives the device one update over the step's micro-batches. False where it was dropped: it has updated nothing.
  // BrokenData leaves the steps before it queued.
  bool queue();
  StepMetrics finish();    // waits for the oldest step that was queued
  void finish_unseen();    // waits for all of them, and notes only updates that were not made
  void restart_clock();    // time before this call belongs to no step, and neither do the waits of ranks in it
  bool run_ahead() const;  // micro-steps are short enough to queue a step before the last one's figures are known

 private:
  QueuedStep& take_oldest();  // off the queue; it stays as it is until the next one is queued
  void micro_steps(QueuedStep& sums);
  void pass_over_batches();
  std::size_t micro_steps_ahead() const;
  NormsObservation norms_of(const QueuedStep& step, const UpdateResult& update);
  RankPaces paces(double step_seconds);
  void raise_peak(double rate);

  Session& session_;
  RunData& data_;
  const Ends& ends_;
  Rescue& rescue_;
  QueuedStep steps_[2];  // oldest first
  int queued_ = 0;
  bool ready_ = false;             // the first batch is there, and all that comes before it
  bool rehearsed_;                 // the card has chosen its kernels and captured its graphs, or need not
  double micro_step_seconds_ = 0;  // of the last step that was waited for
  // Micro-steps are too long to run ahead: this rank's, or any rank's by what all know. A rank that ran ahead of others
  // would stop after a later step, and wait for them in one that they never begin.
  bool slow_ = false;
  double peak_;
  std::vector<double> rates_;  // FLOPs a second of the last steps, where they may raise the peak
  bool peak_was_low_ = false;
  NoiseScale noise_;   // of gradients, over the looks of this session
  double waited_ = 0;  // for ranks, when the step before ended
};

// Texts that the model writes while it trains (train.sample_every), by the decoding programs of the run's own engine.
// Nothing that a step reads is changed.
class Samples {
 public:
  // Without prompts the first held-out document gives one. A prompt that cannot be used is a UserError: prompts are
  // made before the run begins, so that it costs no step.
  Samples(const config::Config& config, const data::Corpus& held_out);

  // Texts end where they are when `go_on` returns false.
  std::vector<SampledText> write(model::Engine& engine, const std::function<bool()>& go_on) const;

 private:
  const data::Corpus& corpus_;
  std::vector<std::vector<std::int32_t>> prompts_;
  model::GenerateOptions options_;
};

// The work between steps, on all ranks: evaluations and samples.
class Asides {
 public:
  Asides(Session& session, HeldOut& held_out, Ends& ends, Rescue& rescue)
      : session_(session), held_out_(held_out), ends_(ends), rescue_(rescue) {}

  void make_samples();  // their prompts, where the run writes any
  struct Losses {
    std::vector<HeldOutLoss> weights;  // of every held-out set; `ends` use the first. Empty where a signal came first
    std::optional<double> average;     // of the first set, where there is an average and it is not the weights
  };
  Losses evaluate();
  bool samples() const { return samples_.has_value(); }
  void write_samples(std::int64_t step);

 private:
  std::optional<double> loss_of_average();
  std::vector<HeldOutLoss> losses(bool first_alone);

  Session& session_;
  HeldOut& held_out_;
  Ends& ends_;
  Rescue& rescue_;
  std::optional<Samples> samples_;
};

// Gives the state to the keeper, and counts a save once it is on the disk.
class Saves {
 public:
  Saves(Session& session, RunData& data, Ends& ends, Rescue& rescue)
      : session_(session), data_(data), ends_(ends), rescue_(rescue) {}

  void begin() {
    safe_step_ = saved_step_ = session_.state.step;
    session_.saved_at = session_.options.hours_clock();
  }
  bool all() const { return session_.state.step <= saved_step_; }  // no step came after the last save
  void save(const data::LoaderState& loader);
  void collect(Keeper::Wait wait);

 private:
  Session& session_;
  RunData& data_;
  Ends& ends_;
  Rescue& rescue_;
  std::int64_t safe_step_ = 0;   // the last one that is on the disk: resumed from, or saved
  std::int64_t saved_step_ = 0;  // the same, or the one that is being saved
};

}  // namespace redline::train
