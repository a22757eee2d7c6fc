// The training loop: one object a run, from resume to the last checkpoint.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/counted.h"
#include "config/load.h"
#include "data/loader.h"
#include "io/checkpoint_folder.h"
#include "model/engine.h"
#include "model/evaluate.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/memory_advice.h"
#include "train/queued_step.h"
#include "train/resume.h"
#include "train/run_lock.h"
#include "train/samples.h"
#include "train/start.h"

namespace redline::train {
namespace {

double seconds_since(double start) { return steady_seconds() - start; }

double gib(std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

// Ends the loading of weights when a signal has come; no std::exception, since nothing is wrong.
struct StoppedLoading {};

// One run, from its first step here to its last.
class Run {
 public:
  Run(const TrainOptions& options, device::Device& device, FileSystem& files)
      : options_(options),
        config_(options.config),
        device_(device),
        files_(files),
        steps_(total_steps(config_.train)),
        checkpoints_(options.folder / "checkpoints"),
        lowering_(model::lowering_options(config_, device.kind())),
        loader_(data::open_training_source(config_.data), training_options()),
        held_out_(data::open_held_out_source(config_.data), data::evaluation_options(config_.data, lowering_.batch)),
        batch_(lowering_.batch),
        peak_(options.peak_flops) {
    for (const data::Loader* loader : {&loader_, &held_out_})
      data::require_vocabulary(loader->corpus(), config_.model.vocab, config_.origins);
    state_.data = loader_.corpus().fingerprint();
    if (config_.train.sample_every > 0) samples_.emplace(config_, lowering_, held_out_);
  }

  // What cannot start leaves no run behind: weights that there are, of a checkpoint or of model.init_from, are in memory
  // before anything is written.
  TrainResult run() {
    lowered_ = model::lower(config_.model, lowering_);
    std::optional<Path> checkpoint;
    try {
      checkpoint = load();
    } catch (const StoppedLoading&) {
      tell([&](Observer& o) {
        o.note(
            fmt::format("stopped by signal {} while weights were loaded; nothing was written", options_.stop->load()));
      });
      return {Outcome::stopped, state_.step, {}};
    }
    if (trains()) {
      if (!engine_) require_memory();
      files_.create_folders(options_.folder);
      if (!lock_) lock_.emplace(options_.folder);
      if (!options_.resume) check_folder(options_, files_);  // another may have begun while this one loaded
      write_run_config(options_, files_);
      io::prepare_checkpoints(files_, checkpoints_);
    }
    tell_start(checkpoint);
    if (options_.dry_run) {
      const std::string problem = memory_problem(config_, lowered().set.memory.total, device_);
      if (!problem.empty()) tell([&](Observer& o) { o.warning(problem); });
      return {Outcome::dry_run, state_.step, {}};
    }
    if (!trains()) {
      tell([&](Observer& o) {
        o.finished(
            fmt::format("{}: nothing is left to do after {}", options_.folder.string(), counted(steps_, "step")));
      });
      return {Outcome::already_finished, state_.step, {}};
    }
    if (!engine_) {
      make_engine();
      engine_->initialise(static_cast<std::uint64_t>(config_.train.seed));
    }
    if (state_.step == 0 && config_.train.eval_every > 0) held_out_loss();  // where it began
    return loop();
  }

 private:
  template <class Say>
  void tell(const Say& say) {
    for (Observer* o : options_.observers) say(*o);
  }

  bool trains() const { return !options_.dry_run && state_.step < steps_; }

  const model::LoweredModel& lowered() const { return engine_ ? engine_->lowered() : lowered_; }

  void make_engine() {
    require_memory();
    engine_ = std::make_unique<model::Engine>(config_.model, lowering_, std::move(lowered_), device_);
  }

  model::LoadProgress tell_loading() {
    return [this](std::uint64_t done, std::uint64_t of) {
      if (stopping()) throw StoppedLoading{};
      tell([&](Observer& o) { o.loading(done, of); });
    };
  }

  // The weights that there are. Returns the checkpoint that they are from; nothing: they are model.init_from's, or there
  // are none.
  std::optional<Path> load() {
    std::optional<Path> checkpoint =
        resume_newest(options_, files_, [&](const Path& folder) { return take_up(folder); });
    if (checkpoint || config_.model.init_from.empty()) return checkpoint;
    load_start(config_, loader_.corpus(), options_, files_, [&](const io::WeightFiles& weights) {
      if (!trains()) return;
      if (!engine_) make_engine();
      io::reading_weights([&] { model::load_weights(*engine_, weights, tell_loading()); });  // moments are zero
    });
    return checkpoint;
  }

  // The run stands where the checkpoint left it, unless what is returned says what is wrong with it. Then the next one takes
  // the place of all that was loaded.
  std::string take_up(const Path& checkpoint) {
    if (std::string problem = missing_from_checkpoint(files_, checkpoint); !problem.empty()) return problem;
    restore_state(checkpoint);
    if (!trains()) return io::checkpoint_problem(files_, checkpoint, tell_loading());
    if (!lock_) lock_.emplace(options_.folder);
    if (!engine_) make_engine();
    try {
      load_tensors(checkpoint, *engine_, tell_loading());
      return {};
    } catch (const std::exception&) {
      // Changed bytes can look wrong in many ways before the hash is known: what the manifest says is what to tell. Where it
      // has nothing to say the checkpoint is whole and does not fit this run, or the device failed.
      std::string problem = io::checkpoint_problem(files_, checkpoint, tell_loading());
      if (problem.empty()) throw;
      return problem;
    }
  }

  void restore_state(const Path& checkpoint) {
    const std::uint64_t data = state_.data;
    state_ = read_run_state(files_, checkpoint);
    if (state_.data != data)
      fail_user(
          "data.train ({}) is not what {} was trained on; give it back its data, or start another run with another "
          "--out",
          loader_.corpus().name(), checkpoint.string());
    loader_.restore(state_.loader);
  }

  void tell_start(const std::optional<Path>& checkpoint) {
    RunHeader header;
    header.config = &config_;
    header.folder = options_.folder;
    header.device = device_.name();
    header.card = device_.kind() != device::Kind::cpu;
    header.device_memory = device_.memory_bytes();
    header.data = loader_.corpus().name();
    header.parameters = model::parameter_count(lowered().table);
    header.steps = steps_;
    header.first_step = state_.step;
    header.tokens_per_step = batch_.shape.tokens() * config_.train.accumulate;
    header.memory = &lowered().set.memory;
    header.batch_was_chosen = options_.batch_was_chosen;
    header.peak_flops = options_.peak_flops;
    header.peak_source = options_.peak_source;
    const std::string folder = options_.folder.string();
    if (checkpoint)
      tell([&](Observer& o) {
        o.note(fmt::format("resuming after step {} from {}", state_.step, checkpoint->string()));
      });
    else if (options_.resume)
      tell([&](Observer& o) { o.note(fmt::format("nothing to resume in {}: starting from the beginning", folder)); });
    tell([&](Observer& o) { o.started(header); });
  }

  void require_memory() const { train::require_memory(config_, lowered().set.memory.total, device_); }

  bool stopping() const { return options_.stop && *options_.stop != 0; }

  // A device that runs ahead is given the next step before the last one's figures are asked for, so that it never waits
  // for the host; they come a step late. Where somebody looks at the parameters, all figures are in first.
  TrainResult loop() {
    std::optional<double> eval_loss;
    finished_at_ = steady_seconds();
    saved_step_ = state_.step;
    while (state_.step < steps_) {
      queue_step();
      const bool last = state_.step == steps_;
      const auto due = [&](std::int64_t every) { return last || (every > 0 && state_.step % every == 0); };
      const bool evaluation = due(config_.train.eval_every), checkpoint = due(config_.checkpoint.every);
      const bool sample = samples_ && due(config_.train.sample_every);
      const bool look = evaluation || checkpoint || sample || stopping() || !device_.runs_ahead();
      if (queued_ == 2) tell_step(finish_step());
      if (!look) continue;
      StepMetrics m = finish_step();
      if (evaluation && (last || !stopping())) m.eval_loss = eval_loss = held_out_loss();
      const bool stop = stopping();
      tell_step(m);
      if (sample && (last || !stop))
        tell([&, texts = samples_->write(*engine_)](Observer& o) { o.sampled(m.step, texts); });
      if (checkpoint || stop) save();
      if (last || stop) tell_dropped();
      finished_at_ = steady_seconds();
      if (stop && !last) {
        tell([&](Observer& o) {
          o.finished(fmt::format("stopped by signal {} after step {}; continue with --resume", options_.stop->load(),
                                 state_.step));
        });
        return {Outcome::stopped, state_.step, eval_loss};
      }
    }
    tell([&](Observer& o) {
      o.finished(fmt::format("{} done, held-out loss {:.4f}", counted(state_.step, "step"), eval_loss.value_or(NAN)));
    });
    return {Outcome::finished, state_.step, eval_loss};
  }

  void tell_step(const StepMetrics& m) {
    tell([&](Observer& o) { o.stepped(m); });
  }

  // Gives the device one update over `accumulate` micro-batches.
  void queue_step() {
    QueuedStep& s = steps_queued_[queued_++];
    s.step = state_.step + 1;
    s.lr = optim::learning_rate(config_.optim, state_.step, steps_);
    micro_steps(s);
    engine_->set_step(static_cast<std::uint64_t>(state_.step), s.lr, 1.0 / static_cast<double>(s.pairs), 0);
    engine_->update();
    engine_->post_result();
    state_.step += 1;
    state_.tokens += s.pairs;
  }

  // Waits for the oldest step that was queued. Its time is what passed since the one before it was done.
  StepMetrics finish_step() {
    const model::Engine::StepResult result = engine_->take_result();
    const double now = steady_seconds(), seconds = now - std::exchange(finished_at_, now);
    QueuedStep& s = steps_queued_[0];
    const double loss = result.loss_sum / static_cast<double>(s.pairs);
    if (result.update.finite != 1.0f) s.refuse(loss, result.update.grad_norm);
    if (peak_ > 0) raise_peak(s.flops / seconds);
    const std::int64_t slots = batch_.shape.tokens() * config_.train.accumulate;
    StepMetrics m = s.metrics(loss, result.update.grad_norm, seconds, slots, peak_);
    if (config_.data.long_documents == "truncate") m.truncated_tokens = s.truncated_tokens;
    m.memory_gib = gib(engine_->executor().arena_bytes());
    if (options_.gpu) m.gpu = options_.gpu->latest();
    std::swap(steps_queued_[0], steps_queued_[1]);
    --queued_;
    return m;
  }

  // What is wrong with the data does not cost the steps before it.
  bool next_batch() {
    try {
      return loader_.next(batch_);
    } catch (const UserError&) {
      --queued_;  // the step that asked
      while (queued_ > 0) tell_step(finish_step());
      if (state_.step > saved_step_) save(before_step_);
      throw;
    }
  }

  void micro_steps(QueuedStep& sums) {
    sums.clear();
    before_step_ = loader_.state();
    for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
      const double wait = steady_seconds();
      if (!next_batch()) fail_user("data.train has no documents to train on");
      sums.data_wait += seconds_since(wait);
      sums.documents.insert(sums.documents.end(), batch_.sources.begin(), batch_.sources.end());
      engine_->upload(batch_);
      engine_->set_step(static_cast<std::uint64_t>(state_.step), sums.lr, 0,
                        static_cast<std::uint64_t>(micro * batch_.shape.tokens()));
      engine_->micro_step(micro == 0);
      sums.pairs += batch_.pairs;
      sums.real_tokens += batch_.real_tokens;
      sums.flops += engine_->model_flops(batch_);
      sums.flops_palm += engine_->model_flops_palm(batch_);
    }
    sums.truncated_tokens = loader_.state().truncated_tokens;
    if (sums.pairs == 0)
      fail_user("step {}: the batch holds no token pairs to predict; give documents of at least 2 tokens", sums.step);
  }

  // Nothing runs above a true peak: one that is passed was measured while the machine was busy.
  void raise_peak(double rate) {
    if (rate <= peak_) return;
    peak_ = rate;
    if (std::exchange(peak_was_low_, true)) return;
    tell([&](Observer& o) {
      o.warning(
          "a step was faster than the peak that was measured at the start, when the machine was busy: mfu is held "
          "against the fastest step from here on");
    });
  }

  data::LoaderOptions training_options() {
    data::LoaderOptions o = data::loader_options(config_.data, lowering_.batch, device_.kind() == device::Kind::cpu);
    if (config_.data.debug)
      o.report = [this](const data::PipelineFigures& f) { tell([&](Observer& observer) { observer.pipeline(f); }); };
    return o;
  }

  // What of the data no step has seen.
  void tell_dropped() {
    loader_.report_now();
    const data::LoaderState& s = loader_.state();
    if (s.truncated_tokens > 0)
      tell([&](Observer& o) {
        o.note(fmt::format("data.long_documents dropped {} of documents that are longer than a row",
                           counted(s.truncated_tokens, "token")));
      });
    if (s.empty_documents > 0)
      tell([&](Observer& o) { o.note(fmt::format("empty documents that were passed over: {}", s.empty_documents)); });
  }

  double held_out_loss() {
    held_out_.restore({});
    const model::Evaluation e = model::evaluate(
        *engine_, held_out_, config_.train.eval_batches,
        [&](std::int64_t done, std::int64_t of) { tell([&](Observer& o) { o.evaluating(done, of); }); });
    if (!std::isfinite(e.loss))
      throw NotFinite(
          fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved; try a "
                      "lower optim.lr and --resume from the last checkpoint",
                      state_.step, e.loss));
    tell([&](Observer& o) { o.evaluated(state_.step, e.loss); });
    return e.loss;
  }

  void save() { save(loader_.state()); }

  void save(const data::LoaderState& loader) {
    const double start = steady_seconds();
    if (!parameters_finite(*engine_))
      throw NotFinite(
          fmt::format("after step {} a parameter is not finite and is not saved; try a lower optim.lr and --resume "
                      "from the last checkpoint",
                      state_.step));
    tell([](Observer& o) { o.before_checkpoint(); });
    state_.loader = loader;
    saved_step_ = state_.step;
    save_checkpoint(files_, checkpoints_, *engine_, config_, state_);
    io::prune_checkpoints(files_, checkpoints_, config_.checkpoint.keep, config_.checkpoint.keep_every, state_.step);
    tell([&](Observer& o) {
      o.saved(state_.step, checkpoints_ / io::checkpoint_name(state_.step), seconds_since(start));
    });
  }

  const TrainOptions& options_;
  const config::Config& config_;
  device::Device& device_;
  FileSystem& files_;
  std::int64_t steps_;
  Path checkpoints_;
  std::optional<RunLock> lock_;
  model::LoweringOptions lowering_;
  data::Loader loader_, held_out_;
  data::Batch batch_;
  std::optional<Samples> samples_;
  model::LoweredModel lowered_;  // until there is an engine, which has it then
  std::unique_ptr<model::Engine> engine_;
  data::LoaderState before_step_;  // where the data stood when the step that is being queued began
  std::int64_t saved_step_ = 0;    // the last one that is safe on the disk: resumed from, or saved
  QueuedStep steps_queued_[2];     // oldest first
  int queued_ = 0;
  double finished_at_ = 0;  // the last step that was waited for, or what held the next one up
  double peak_;
  bool peak_was_low_ = false;
  RunState state_;
};

}  // namespace

std::int64_t total_steps(const config::Train& t) {
  const std::int64_t tokens_per_step = t.batch_size * t.seq_len * t.accumulate;
  const std::int64_t by_tokens = (t.max_tokens + tokens_per_step - 1) / tokens_per_step;
  if (t.max_tokens == 0) return t.max_steps;
  if (t.max_steps == 0) return by_tokens;
  return std::min(t.max_steps, by_tokens);
}

TrainResult train(const TrainOptions& options, device::Device& device, FileSystem& files) {
  REDLINE_CHECK(!options.config.train.automatic_batch_size, "train.batch_size is \"auto\" still");
  check_folder(options, files);
  return Run(options, device, files).run();
}

}  // namespace redline::train
