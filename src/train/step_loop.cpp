// Gives the device one step after another, and looks at the parameters only where somebody asked for it.
#include "train/step_loop.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/words.h"
#include "config/ramps.h"
#include "data/from_config.h"
#include "model/fp8_linears.h"
#include "optim/average.h"
#include "optim/schedule.h"
#include "program/product_tuning.h"
#include "train/memory_advice.h"

namespace redline::train {
namespace {

constexpr double kAhead = 1;            // seconds of work that may be queued
constexpr std::size_t kManySteps = 20;  // that a rate must hold over

model::LoweringOptions lowering_of_rank(const TrainOptions& options, device::Kind kind) {
  model::LoweringOptions o = model::lowering_options(options.config, kind);
  o.sharing = options.team.sharing;
  o.execution.group = options.team.group;
  return o;
}

data::LoaderOptions of_rank(data::LoaderOptions o, const dist::Sharing& sharing) {
  o.rank = sharing.rank;
  o.ranks = sharing.ranks;
  return o;
}

}  // namespace

StepLoop::StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper)
    : options_(options),
      config_(options.config),
      device_(device),
      files_(files),
      keeper_(keeper),
      lowering_(lowering_of_rank(options, device.kind())),
      loader_(open_loader()),
      held_out_(config_.data, lowering_.batch, options.team.sharing),
      watch_(loader_.corpus()),
      epoch_(loader_.epoch()),
      ends_(
          config_, steps_of_run(),
          [this](const std::string& sentence, std::int64_t steps) {
            keeper_.tell(Planned{{{sentence}}, steps});
          },
          options.hours_clock),
      batch_(lowering_.batch),
      rehearsed_(!device.runs_ahead()),
      peak_(options.peak_flops) {
  require_programs();
  std::vector<const data::Corpus*> corpora = held_out_.corpora();
  corpora.insert(corpora.begin(), &loader_.corpus());
  for (const data::Corpus* corpus : corpora)
    data::require_vocabulary(*corpus, config_.model.vocab,
                             config_.origins.prefix({"model.vocab", "data.train", "data.eval"}));
  if (!config_.data.eval.empty()) eval_watch_.emplace(held_out_.corpora());
  if (config_.train.sample_every > 0) samples_.emplace(config_, held_out_.corpus());
  lowered_ = model::lower(config_.model, lowering_);
}

// A batch for which the loader has no room is rather one for which the device has none, and that is what to mend.
data::Loader StepLoop::open_loader() {
  try {
    return data::Loader(data::open_training_corpus(data::corpus_options(config_.data)), training_options());
  } catch (const data::NoRoomForBatches&) {
    train::require_memory(config_, memory_needed(config_, device_.kind()), device_);
    throw;
  }
}

data::LoaderOptions StepLoop::training_options() {
  data::LoaderOptions o = of_rank(
      data::loader_options(config_.data, lowering_.batch, device_.kind() == device::Kind::cpu), options_.team.sharing);
  o.packer.cut_later = config_.train.seq_len_from;
  if (config_.data.debug) o.report = [this](const data::PipelineStats& f) { keeper_.tell(Pipeline{f}); };
  return o;
}

// Epochs must be known as steps before the first one: the learning rate falls towards the last.
std::int64_t StepLoop::steps_of_run() const {
  if (config_.train.epochs > 0 && !epoch_)
    fail_user("{}train.epochs needs data of known length, and data.train ({}) {} train.max_steps instead",
              config_.origins.prefix({"train.epochs"}), loader_.corpus().name(),
              loader_.corpus().endless() ? "has no end; give"
                                         : "is counted only by reading it; run redline data prepare on it, or give");
  return total_steps(config_.train, batches_of_epoch(), ranks());
}

std::optional<double> StepLoop::batches_of_epoch() const {
  return epoch_ ? std::optional(epoch_->batches) : std::nullopt;
}

void StepLoop::restore(const RunState& state) {
  loader_.restore(state.loader);
  state_ = state;
  ends_.restore(state.ends, state.step);
}

model::LoadProgress StepLoop::tell_loading() {
  return [this](std::uint64_t done, std::uint64_t of) {
    if (!going_back_ && alone()) end_if_asked(options_.stop);
    tell_alive();
    keeper_.tell(Loading{done, of});
  };
}

void StepLoop::require_memory() const {
  if (!engine_) train::require_memory(config_, lowered_.set.memory.total, device_);
}

void StepLoop::make_engine() {
  if (engine_) return;
  require_memory();
  program::tune_products(device_, config_.kernels.tuning);
  engine_ = std::make_unique<model::Engine>(config_.model, lowering_, std::move(lowered_), device_);
}

RunHeader StepLoop::header() const {
  const model::LoweredModel& lowered = this->lowered();
  std::optional<double> epochs;
  const std::int64_t steps = ends_.over() ? state_.step : ends_.steps() == Ends::kNoEnd ? 0 : ends_.steps();
  if (epoch_ && steps > 0)
    epochs = static_cast<double>(config::micro_batches_before(config_.train, steps) * ranks()) / epoch_->batches;
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
          .steps = steps,
          .first_step = state_.step,
          .seconds_left = ends_.seconds_left(),
          .tokens_per_step = batch_.shape.tokens() * config_.train.accumulate * ranks(),
          .sharing = options_.team.sharing,
          .engine = options_.team.group ? options_.team.group->engine() : "",
          .memory = &lowered.set.memory,
          .batch_was_chosen = options_.batch_was_chosen,
          .fp8 = config_.precision.matmul == "fp8" ? model::in_words(model::fp8_products(config_), options_.fp8_reasons)
                                                   : "",
          .peak_flops = options_.peak_flops,
          .peak_source = options_.peak_source,
          .goodput = goodput_};
}

// A device that runs ahead is given the next step before the last one's figures are asked for, so that it never waits
// for the host; they come a step late. Where somebody looks at the parameters, all figures are in first. Where
// a micro-step takes long each step is waited for, so that a signal need not wait for two.
TrainResult StepLoop::run() {
  began_ = steady_seconds();
  first_step_ = state_.step;
  if (!engine_) {
    make_engine();
    engine_->initialise(static_cast<std::uint64_t>(config_.train.seed));
  }
  if (options_.team.leads()) {
    watch_.start_reading();
    if (eval_watch_) eval_watch_->start_reading();
  }
  safe_step_ = saved_step_ = state_.step;
  guard_.begin(state_.step);
  if (lowering_.norms && !lowered().norms.has_updates)
    keeper_.tell(
        Note{"log.norms_every: norms of updates are left out, since a copy of the weights is larger than the "
             "activations whose memory it would take"});
  if (state_.step == 0 && config_.train.eval_every > 0) held_out_losses();  // where it began
  for (;;) try {
      return run_steps();
    } catch (const GoBack& because) {
      go_back(because);
    }
}

TrainResult StepLoop::run_steps() {
  std::optional<double> eval_loss, of_average;
  restart_clock();
  bool dropped = false;
  goodput_->turn_to(Part::steps);
  while (!at_end() && !stopping()) {
    dropped = !queue_step();
    if (dropped) break;
    settle(Keeper::Settle::if_over);
    ends_.stepped(state_.step);
    const bool last = at_end();
    const auto due = [&](std::int64_t every) { return last || (every > 0 && state_.step % every == 0); };
    const bool evaluation = due(config_.train.eval_every), checkpoint = folder_lost() || due(config_.checkpoint.every);
    const bool sample = samples_ && due(config_.train.sample_every);
    const bool ahead = device_.runs_ahead() && micro_step_seconds_ < kAhead;
    if (queued_ == 2) keeper_.tell(Stepped{finish_step()});
    if (ahead && !evaluation && !checkpoint && !sample && !stopping()) continue;
    StepMetrics m = finish_step();
    if (evaluation) {
      m.sources = loader_.shares();
      HeldOutLosses losses = held_out_losses();
      m.take(std::move(losses.weights), held_out_.named());
      m.eval_loss_average = losses.average;
    }
    if (last || m.eval_loss) {
      eval_loss = m.eval_loss;
      of_average = m.eval_loss_average;
    }
    const bool best = m.eval_loss && ends_.evaluated(m.step, *m.eval_loss);
    keeper_.tell(Stepped{m});
    get_ready_to_save();
    if (sample && !stopping()) write_samples(m.step);
    if (checkpoint || best || stopping()) save(loader_.state());
    if (evaluation || checkpoint || sample) restart_clock();
  }
  finish_steps();
  if (state_.step > saved_step_) save(dropped ? before_step_ : loader_.state());
  {
    const Goodput::Scope saving = goodput_->in(Part::saving);
    settle(Keeper::Settle::last);
  }
  tell_dropped();
  tell_mixture();
  const bool stopped = !at_end() || !eval_loss;
  const Outcome outcome = stopped ? Outcome::stopped : Outcome::finished;
  keeper_.tell(ending(
      outcome,
      stopped ? how_it_stopped(dropped)
              : fmt::format("{} done, held-out loss {:.4f}{}{}", counted(state_.step, "step"), *eval_loss,
                            of_average ? fmt::format(", of the average {:.4f}", *of_average) : "", ends_.ending())));
  return {outcome, state_.step, eval_loss};
}

std::string StepLoop::how_it_stopped(bool dropped) const {
  const std::string where = state_.step == 0 ? "before the first step" : fmt::format("after step {}", state_.step);
  const std::string by = fmt::format(
      "stopped by {} {}",
      asked_to_stop() ? fmt::format("signal {}", options_.stop->load()) : "a signal to another rank", where);
  if (at_end()) return by + ", the last; its held-out loss is what redline eval says";
  return fmt::format("{}{}; continue with --resume", by,
                     dropped ? fmt::format("; step {} was left unfinished", state_.step + 1) : "");
}

Finished StepLoop::ending(Outcome outcome, std::string sentence) const {
  goodput_->ask(options_.gpu);
  return {{std::move(sentence)}, outcome == Outcome::stopped, first_step_ > 0,    state_.step - first_step_,
          state_.tokens,         steady_seconds() - began_,   goodput_->account()};
}

// Gives the device one update over the step's micro-batches. False where it was dropped: it has updated nothing.
bool StepLoop::queue_step() {
  QueuedStep& s = steps_queued_[queued_++];
  s.step = state_.step + 1;
  s.lr = optim::learning_rate(config_, state_.step, ends_.steps(), ranks());
  engine_->drop_on(alone() ? options_.drop : nullptr);  // a rank that left a step would leave the others waiting
  try {
    micro_steps(s);
  } catch (const Interrupted&) {
    --queued_;
    return false;
  }
  engine_->average_with(optim::average_share(config_.train, state_.step, ends_.steps()));
  engine_->set_step(static_cast<std::uint64_t>(state_.step), s.lr,
                    StepCounts{.pairs = static_cast<double>(s.pairs),
                               .real_tokens = static_cast<double>(s.real_tokens),
                               .flops = s.flops,
                               .flops_palm = s.flops_palm,
                               .stop = asked_to_stop() ? 1.0 : 0.0},
                    0);
  keeper_.before_update();
  if (s.norms)
    engine_->update_with_norms();
  else
    engine_->update();
  engine_->post_result();
  if (s.norms) {
    const bool small = s.norms->small.counts.pairs > 0;
    s.norms = engine_->norm_sums();
    if (!small) s.norms->small = {};
  }
  state_.step += 1;
  state_.guard.drawn += 1;
  tell_alive();
  return true;
}

void StepLoop::micro_steps(QueuedStep& sums) {
  sums.clear();
  pass_over_batches();
  sums.draw = state_.guard.drawn;
  before_step_ = loader_.state();
  sums.micro_batches = config::micro_batches(config_.train, state_.step);
  const std::int64_t longest = config::longest_document(config_.train, state_.step);
  for (std::int64_t micro = 0; micro < sums.micro_batches; ++micro) {
    const double wait = steady_seconds();
    if (!next_batch()) fail_user("data.train has no documents to train on");
    sums.data_wait += steady_seconds() - wait;
    sums.documents.insert(sums.documents.end(), batch_.sources.begin(), batch_.sources.end());
    if (!std::exchange(rehearsed_, true)) {
      const Goodput::Scope tuning = goodput_->in(Part::start_up);
      engine_->rehearse(batch_);
    }
    batch_.cut_documents(longest);  // behind the rehearsal, which chooses kernels for the whole run
    engine_->clock().wait_for_all_but(micro_steps_ahead());
    engine_->upload(batch_);
    engine_->set_step(
        static_cast<std::uint64_t>(state_.step), sums.lr, 0,
        static_cast<std::uint64_t>((micro * ranks() + options_.team.sharing.rank) * batch_.shape.tokens()));
    const bool last = micro + 1 == sums.micro_batches;
    if (micro == 0 && looks_at_fp8(sums.step))
      sums.fp8.emplace(engine_->watched_micro_step(true, last));
    else
      engine_->micro_step(micro == 0, last);
    if (micro == 0 && looks_at_norms(sums.step)) {
      sums.norms.emplace();
      sums.norms->small.counts.pairs = last ? 0 : static_cast<double>(batch_.pairs);
      if (!last) engine_->small_gradient(static_cast<std::uint64_t>(state_.step), sums.norms->small.counts.pairs);
    }
    sums.pairs += batch_.pairs;
    sums.real_tokens += batch_.real_tokens;
    sums.flops += engine_->model_flops(batch_);
    sums.flops_palm += engine_->model_flops_palm(batch_);
  }
  sums.truncated_tokens = loader_.state().truncated_tokens;
  sums.epoch = loader_.epochs_read();
  sums.sources = loader_.shares();
  warn_of_repeats();
}

bool StepLoop::looks_at_fp8(std::int64_t step) const {
  const std::int64_t every = config_.log.fp8_every;
  return every > 0 && !lowered().fp8.empty() && (step == 1 || step % every == 0);
}

// As many as the device does within about a second: what is queued cannot be taken back from a card.
std::size_t StepLoop::micro_steps_ahead() const {
  return micro_step_seconds_ > 0 ? static_cast<std::size_t>(std::max(1.0, kAhead / micro_step_seconds_)) : 1;
}

// An error in the data does not cost the steps before it.
bool StepLoop::next_batch() {
  try {
    return loader_.next(batch_);
  } catch (const std::exception&) {
    --queued_;  // the step that asked
    finish_steps();
    try {
      if (state_.step > saved_step_) save(before_step_);
      settle(Keeper::Settle::last);
    } catch (const MachineError& disk) {  // the first of the two says more
      keeper_.tell(Warning{disk.what()});
    }
    throw;
  }
}

void StepLoop::finish_steps() {
  while (queued_ > 0) keeper_.tell(Stepped{finish_step()});
}

// Waits for the oldest step that was queued.
StepMetrics StepLoop::finish_step() {
  const model::Engine::StepResult result = engine_->take_result();
  QueuedStep& s = steps_queued_[0];
  micro_step_seconds_ = result.time.seconds / static_cast<double>(s.micro_batches);
  if (!alone()) s.take_counts(result.update.counts);
  state_.tokens += s.pairs;
  if (result.update.counts.stop > 0) others_stop_ = true;
  if (s.pairs == 0) tell_nothing_learned(s.step);
  const double loss = result.update.loss_sum / static_cast<double>(std::max<std::int64_t>(s.pairs, 1));
  if (result.update.finite == 1.0f)
    guard_.made(s.draw, s.documents);
  else
    leave_out(s, loss, result.update);
  if (options_.peak_was_measured) raise_peak(s.flops / static_cast<double>(ranks()) / result.time.seconds);
  const std::int64_t slots = batch_.shape.tokens() * s.micro_batches * ranks();
  StepMetrics m = s.metrics(loss, result.update.grad_norm, result.time, slots, peak_ * static_cast<double>(ranks()));
  if (s.norms) m.norms = norms_of(s, result.update);
  if (config_.data.long_documents == "truncate") m.truncated_tokens = s.truncated_tokens;
  if (loader_.corpus().masked()) m.learned = s.learned();
  m.memory_gib = gib(engine_->executor().arena_bytes());
  if (options_.gpu) m.gpu = options_.gpu->latest();
  if (!alone()) m.ranks = paces(result.time.seconds);
  goodput_->stepped(m);
  if (m.account) m.sources = std::move(s.sources);
  m.skipped = state_.guard.skipped;
  m.rollbacks = state_.guard.rollbacks;
  forget_oldest();
  return m;
}

// Nothing runs above a true peak for long: one that most of the last steps pass was measured while the machine was
// busy.
void StepLoop::raise_peak(double rate) {
  rates_.push_back(rate);
  if (rates_.size() < kManySteps) return;
  if (rates_.size() > kManySteps) rates_.erase(rates_.begin());
  std::vector<double> sorted = rates_;
  std::ranges::nth_element(sorted, sorted.begin() + kManySteps / 2);
  if (sorted[kManySteps / 2] <= peak_) return;
  peak_ = sorted[kManySteps / 2];
  if (std::exchange(peak_was_low_, true)) return;
  keeper_.tell(Warning{
      fmt::format("the last {} steps were faster than the peak that was measured at the start, when the machine "
                  "was busy: mfu is held against them from here on",
                  kManySteps)});
}

// Where train.epochs is set, the run ends with them.
void StepLoop::warn_of_repeats() {
  if (config_.train.epochs > 0 || before_step_.next.epoch > 0 || loader_.state().next.epoch == 0) return;
  keeper_.tell(Warning{
      fmt::format("step {} begins to read the training data a second time; {} says how often a run is to read them",
                  state_.step + 1, epoch_ ? "train.epochs" : "train.epochs, once the data are prepared,")});
}

// Tells of the data that no step has seen.
void StepLoop::tell_dropped() {
  loader_.report_now();
  const data::LoaderState& s = loader_.state();
  if (s.truncated_tokens > 0)
    keeper_.tell(Note{fmt::format("data.long_documents dropped {} of documents that are longer than a row",
                                  counted(s.truncated_tokens, "token"))});
  if (s.empty_documents > 0)
    keeper_.tell(Note{fmt::format("documents of less than two tokens that were passed over: {}", s.empty_documents)});
}

}  // namespace redline::train
