// Gives the device one step after another, and looks at the parameters only where somebody asked for it.
#include "train/step_loop.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/counted.h"
#include "model/evaluate.h"
#include "optim/schedule.h"
#include "train/memory_advice.h"

namespace redline::train {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

// Parameters that are broken are no checkpoint.
void require_finite_parameters(model::Engine& engine, std::int64_t step) {
  if (parameters_finite(engine)) return;
  throw NotFinite(
      fmt::format("after step {} a parameter is not finite and is not saved; try a lower optim.lr and --resume "
                  "from the last checkpoint",
                  step));
}

}  // namespace

StepLoop::StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper)
    : options_(options),
      config_(options.config),
      device_(device),
      files_(files),
      keeper_(keeper),
      lowering_(model::lowering_options(config_, device.kind())),
      loader_(data::open_training_source(config_.data), training_options()),
      held_out_(data::open_held_out_source(config_.data), data::evaluation_options(config_.data, lowering_.batch)),
      epoch_(loader_.epoch()),
      steps_(steps_of_run()),
      batch_(lowering_.batch),
      peak_(options.peak_flops) {
  for (const data::Loader* loader : {&loader_, &held_out_})
    data::require_vocabulary(loader->corpus(), config_.model.vocab, config_.origins);
  state_.data = loader_.corpus().fingerprint();
  if (config_.train.sample_every > 0) samples_.emplace(config_, held_out_.corpus());
  lowered_ = model::lower(config_.model, lowering_);
}

data::LoaderOptions StepLoop::training_options() {
  data::LoaderOptions o = data::loader_options(config_.data, lowering_.batch, device_.kind() == device::Kind::cpu);
  if (config_.data.debug) o.report = [this](const data::PipelineFigures& f) { keeper_.tell(Pipeline{f}); };
  return o;
}

// Epochs must be known as steps before the first one: the learning rate falls towards the last.
std::int64_t StepLoop::steps_of_run() const {
  if (config_.train.epochs > 0 && !epoch_)
    fail_user("{}train.epochs needs data of known length, and data.train ({}) {} train.max_steps instead",
              config_.origins.prefix({"train.epochs"}), loader_.corpus().name(),
              loader_.corpus().endless() ? "has no end; give"
                                         : "is counted only by reading it; run redline data prepare on it, or give");
  return total_steps(config_.train, epoch_ ? std::optional(epoch_->batches) : std::nullopt);
}

void StepLoop::restore(const RunState& state, const Path& checkpoint) {
  data::require_order(state.loader);
  if (state.data != state_.data)
    fail_user(
        "data.train ({}) is not what {} was trained on; give it back its data, or start another run with another "
        "--out",
        loader_.corpus().name(), checkpoint.string());
  state_ = state;
  loader_.restore(state_.loader);
}

void StepLoop::load_checkpoint(const Path& folder) { load_tensors(folder, *engine_, tell_loading()); }

model::LoadProgress StepLoop::tell_loading() {
  return [this](std::uint64_t done, std::uint64_t of) {
    if (stopping()) throw StoppedLoading{};
    keeper_.tell(Loading{done, of});
  };
}

void StepLoop::require_memory() const {
  if (!engine_) train::require_memory(config_, lowered_.set.memory.total, device_);
}

void StepLoop::make_engine() {
  if (engine_) return;
  require_memory();
  engine_ = std::make_unique<model::Engine>(config_.model, lowering_, std::move(lowered_), device_);
}

RunHeader StepLoop::header() const {
  const model::LoweredModel& lowered = this->lowered();
  std::optional<double> epochs;
  if (epoch_) epochs = static_cast<double>(steps_ * config_.train.accumulate) / epoch_->batches;
  return {.config = &config_,
          .folder = options_.folder,
          .device = device_.name(),
          .data = loader_.corpus().name(),
          .training_data = epoch_,
          .held_out_data = held_out_.epoch_size(),
          .epochs = epochs,
          .card = device_.kind() != device::Kind::cpu,
          .device_memory = device_.memory_bytes(),
          .parameters = model::parameter_count(lowered.table),
          .steps = steps_,
          .first_step = state_.step,
          .tokens_per_step = batch_.shape.tokens() * config_.train.accumulate,
          .memory = &lowered.set.memory,
          .batch_was_chosen = options_.batch_was_chosen,
          .peak_flops = options_.peak_flops,
          .peak_source = options_.peak_source};
}

// A device that runs ahead is given the next step before the last one's figures are asked for, so that it never waits
// for the host; they come a step late. Where somebody looks at the parameters, all figures are in first.
TrainResult StepLoop::run() {
  if (!engine_) {
    make_engine();
    engine_->initialise(static_cast<std::uint64_t>(config_.train.seed));
  }
  if (state_.step == 0 && config_.train.eval_every > 0) held_out_loss();  // where it began
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
    if (queued_ == 2) keeper_.tell(Stepped{finish_step()});
    if (!look) continue;
    StepMetrics m = finish_step();
    if (evaluation && (last || !stopping())) m.eval_loss = eval_loss = held_out_loss();
    const bool stop = stopping();
    keeper_.tell(Stepped{m});
    if (sample && (last || !stop)) keeper_.tell(Sampled{m.step, samples_->write(*engine_)});
    if (checkpoint || stop) save(loader_.state());
    if (last || stop) tell_dropped();
    finished_at_ = steady_seconds();
    if (stop && !last) {
      keeper_.tell(Finished{fmt::format("stopped by signal {} after step {}; continue with --resume",
                                        options_.stop->load(), state_.step)});
      return {Outcome::stopped, state_.step, eval_loss};
    }
  }
  keeper_.tell(
      Finished{fmt::format("{} done, held-out loss {:.4f}", counted(state_.step, "step"), eval_loss.value_or(NAN))});
  return {Outcome::finished, state_.step, eval_loss};
}

// Gives the device one update over `accumulate` micro-batches.
void StepLoop::queue_step() {
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

void StepLoop::micro_steps(QueuedStep& sums) {
  sums.clear();
  before_step_ = loader_.state();
  for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
    const double wait = steady_seconds();
    if (!next_batch()) fail_user("data.train has no documents to train on");
    sums.data_wait += steady_seconds() - wait;
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
  sums.epoch = loader_.epochs_read();
  REDLINE_CHECK(sums.pairs > 0, "step {} has no token pairs to predict", sums.step);
  warn_of_repeats();
}

// What is wrong with the data does not cost the steps before it.
bool StepLoop::next_batch() {
  try {
    return loader_.next(batch_);
  } catch (const UserError&) {
    --queued_;  // the step that asked
    while (queued_ > 0) keeper_.tell(Stepped{finish_step()});
    if (state_.step > saved_step_) save(before_step_);
    throw;
  }
}

// Waits for the oldest step that was queued. Its time is what passed since the one before it was done.
StepMetrics StepLoop::finish_step() {
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

// Nothing runs above a true peak: one that is passed was measured while the machine was busy.
void StepLoop::raise_peak(double rate) {
  if (rate <= peak_) return;
  peak_ = rate;
  if (std::exchange(peak_was_low_, true)) return;
  keeper_.tell(
      Warning{"a step was faster than the peak that was measured at the start, when the machine was busy: mfu is held "
              "against the fastest step from here on"});
}

// Where train.epochs is set, the run ends with them.
void StepLoop::warn_of_repeats() {
  if (config_.train.epochs > 0 || before_step_.next.epoch > 0 || loader_.state().next.epoch == 0) return;
  keeper_.tell(Warning{fmt::format(
      "step {} begins to read the training data a second time; train.epochs says how often a run is to read them",
      state_.step + 1)});
}

// What of the data no step has seen.
void StepLoop::tell_dropped() {
  loader_.report_now();
  const data::LoaderState& s = loader_.state();
  if (s.truncated_tokens > 0)
    keeper_.tell(Note{fmt::format("data.long_documents dropped {} of documents that are longer than a row",
                                  counted(s.truncated_tokens, "token"))});
  if (s.empty_documents > 0)
    keeper_.tell(Note{fmt::format("documents of less than two tokens that were passed over: {}", s.empty_documents)});
}

double StepLoop::held_out_loss() {
  held_out_.restore({});
  const model::Evaluation e =
      model::evaluate(*engine_, held_out_, config_.train.eval_batches, [&](std::int64_t done, std::int64_t of) {
        keeper_.tell(Evaluating{done, of});
      });
  if (!std::isfinite(e.loss))
    throw NotFinite(
        fmt::format("after step {} the held-out loss is {}: the parameters are broken and are not saved; try a "
                    "lower optim.lr and --resume from the last checkpoint",
                    state_.step, e.loss));
  keeper_.tell(Evaluated{state_.step, e.loss});
  return e.loss;
}

void StepLoop::save(const data::LoaderState& loader) {
  const double began = steady_seconds();
  require_finite_parameters(*engine_, state_.step);
  state_.loader = loader;
  saved_step_ = state_.step;
  keeper_.save(*engine_, state_, began);
}

}  // namespace redline::train
