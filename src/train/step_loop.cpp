// A run from its start to its end: where its weights come from, which phase comes when, and how it goes back to a
// checkpoint. The phases themselves are in step_phases.cpp and step_asides.cpp.
#include "train/step_loop.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/words.h"
#include "config/ramps.h"
#include "data/from_config.h"
#include "dist/group.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"
#include "model/fp8_linears.h"
#include "model/weights.h"
#include "train/on_ranks.h"
#include "train/step_phases.h"

namespace redline::train {
namespace {

// Documents that begin otherwise than the texts that the weights learned: with the token that begins a text, or
// without. Text is read as the weights' own tokenizer has it, so these are tokens that were made before. Empty: they do
// not, or somebody has said that it is meant so.
std::string beginning_problem(const Path& folder, const data::Tokenizer& own, const data::Corpus& corpus,
                              const config::Config& config) {
  const std::optional<std::vector<std::int32_t>> begin = corpus.beginning();
  const std::vector<std::int32_t> learned = own.beginning();
  if (!begin || corpus.masked() || config.data.bos != "auto" || begin->empty() == learned.empty()) return {};
  return fmt::format(
      "the documents of data.train begin {} {}, and the tokenizer of {} puts {} before a text, so that the weights "
      "know "
      "texts that begin otherwise; prepare the data with that tokenizer and --bos auto, or "
      "set data.bos={} to say that it is meant so",
      begin->empty() ? "without" : "with", own.written(begin->empty() ? learned.back() : begin->back()),
      folder.string(), begin->empty() ? "it" : "none", begin->empty() ? "none" : "always");
}

// Why the tokenizer beside the weights does not fit the run's data; empty where it does.
std::string tokenizer_problem(const Path& folder, const data::Corpus& corpus, const config::Config& config) {
  std::shared_ptr<const data::Tokenizer> own;
  try {
    own = data::open_tokenizer(folder.string(), folder.string());
  } catch (const UserError& e) {
    return fmt::format("the tokenizer beside the weights cannot be read ({}); make sure that the data have its ids",
                       e.what());
  }
  data::require_fits(*own, config.model.vocab, folder.string());
  const std::optional<std::string> name = data::data_tokenizer(data::corpus_options(config.data));
  if (!name) return beginning_problem(folder, *own, corpus, config);  // the data stand for no known text
  const auto used = data::open_tokenizer(*name, "data.tokenizer");
  if (data::covers(*own, *used)) return beginning_problem(folder, *own, corpus, config);
  return fmt::format(
      "the data are read with the tokenizer {}, and {} has another one ({}): the weights know its ids, not these; set "
      "data.tokenizer, or prepare the data with it",
      used->name(), folder.string(), own->name());
}

std::string batches_in_words(const std::vector<PassedBatch>& passed) {
  std::vector<std::int64_t> documents;
  for (const PassedBatch& p : passed) documents.insert(documents.end(), p.documents.begin(), p.documents.end());
  if (passed.empty()) return "there are no batches to pass over";
  return fmt::format("the batches of {} are passed over{}", counted(passed.size(), "step"),
                     documents.empty() ? "" : fmt::format(" (documents {})", documents_in_words(documents)));
}

// The sentence about a bad document then says what becomes of the steps before it, and how the run goes on.
[[noreturn]] void rethrow_with_way_on(const std::exception_ptr& error, const Session& s, const std::string& steps) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& e) {
    const bool may_skip = std::string_view(e.what()).find("data.on_error") != std::string_view::npos;
    fail_user("{}. {}: go on with --resume --out {}{}; where the data were mended, it takes --allow-change too",
              e.what(), steps, s.options.folder.string(), may_skip ? " data.on_error=skip" : "");
  }
}

}  // namespace

std::optional<RunState> Keeper::go_back(StepLoop&, std::int64_t) { return {}; }

struct StepLoop::Phases {
  Phases(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper)
      : session(options, device, files, keeper),
        data(session),
        ends(
            session.config, data.steps_of_run(),
            [&keeper](const std::string& sentence, std::int64_t last) {
              keeper.tell(Planned{{{sentence}}, last});
            },
            options.hours_clock, options.team.communicator),
        rescue(session),
        steps(session, data, ends, rescue),
        asides(session, data.held_out(), ends, rescue),
        saves(session, data, ends, rescue) {
    if (const auto& team = session.options.team; !session.alone())
      if (const std::string no = refusal(session.config, team.sharing.mode); !no.empty()) fail_user("{}", no);
    data.require_vocabulary();
    data.watch_held_out();
    asides.make_samples();
    session.start.lap("data");
    session.to_bind = model::lower(session.config.model, session.lowering);
    session.start.lap("plan");
  }

  Session session;
  RunData data;
  Ends ends;
  Rescue rescue;
  Steps steps;
  Asides asides;
  Saves saves;
};

StepLoop::StepLoop(const TrainOptions& options, device::Device& device, FileSystem& files, Keeper& keeper)
    : phases_(std::make_unique<Phases>(options, device, files, keeper)) {}
StepLoop::~StepLoop() {
  phases_->session.keeper.let_go();
  phases_->session.engine.reset();  // before the data that it was given
}

// The start.

bool StepLoop::data_changed(const RunState& before, const Path& checkpoint) {
  return phases_->data.compare(before, checkpoint, [&] { phases_->ends.losses_are_others(); });
}

void StepLoop::losses_are_others() { phases_->ends.losses_are_others(); }
bool StepLoop::forgets_losses() const { return phases_->ends.forgets_losses(); }

void StepLoop::restore(const RunState& state) {
  phases_->data.restore(state.loader);
  phases_->session.state = state;
  phases_->ends.restore(state.ends, state.step);
}

void StepLoop::make_engine() { phases_->session.make_engine(); }
void StepLoop::require_memory() const { phases_->session.require_memory(); }

std::int64_t StepLoop::step() const { return phases_->session.state.step; }
bool StepLoop::at_end() const { return phases_->ends.over() || step() >= phases_->ends.steps(); }
bool StepLoop::trains() const { return !phases_->session.options.dry_run && !at_end(); }
std::string StepLoop::nothing_left() const { return phases_->ends.nothing_left(); }
const data::Corpus& StepLoop::documents() const { return phases_->data.corpus(); }
const model::LoweredModel& StepLoop::lowered() const { return phases_->session.lowered(); }

std::optional<double> StepLoop::batches_of_epoch() const {
  const std::optional<data::Epoch>& epoch = phases_->data.epoch();
  return epoch ? std::optional(epoch->batches) : std::nullopt;
}

const std::optional<CountedEpoch>& StepLoop::counted_epoch() const { return phases_->data.count_of_epoch(); }

model::LoadProgress StepLoop::tell_loading() {
  return [this, &s = phases_->session](std::uint64_t done, std::uint64_t of) {
    if (!going_back_ && s.alone()) end_if_asked(s.options.stop);
    s.tell_alive();
    s.keeper.tell(Loading{done, of});
  };
}

void StepLoop::load_checkpoint(const Path& folder, const config::Config* before) {
  Session& s = phases_->session;
  std::vector<std::string> without, notes;
  const auto leave_out = [&](const char* file, std::string_view problem) {
    without.emplace_back(file);
    notes.push_back(fmt::format("{} {}", folder.string(), problem));
  };
  if (!s.lowering.fp8.empty()) {
    if (!has_file(s.files, folder, optim::kFp8File))
      leave_out(optim::kFp8File, "has no scales of fp8 products: they are found anew, on the first batch");
    else if (before && model::fp8_products(*before).taken != s.lowering.fp8)
      leave_out(optim::kFp8File, "has scales of other fp8 products: they are found anew, on the first batch");
  }
  if (s.lowering.average) {
    if (!has_file(s.files, folder, optim::kAverageFile))
      leave_out(optim::kAverageFile, "has no average of the weights: it begins with the weights as they are");
    else if (before && before->train.average != s.config.train.average)
      leave_out(optim::kAverageFile, "has an average of another kind: it begins with the weights as they are");
  }
  load_tensors(folder, *s.engine, tell_loading(), without);
  s.start.lap("weights");
  for (const std::string& note : notes) s.keeper.tell(Note{note});
}

// model.init_from may name a run: its weights are then those of its newest checkpoint that is whole
// (io/checkpoint_folder.h).
void StepLoop::load_start() {
  Session& s = phases_->session;
  const config::Model& m = s.config.model;
  if (m.init_from.empty()) return;
  std::string problem;
  const Path start = io::find_weights_folder(s.files, m.init_from, [&](const Path& folder) {
    const io::WeightFiles weights = io::reading_weights([&] {
      io::WeightFiles opened(s.files, folder);
      model::check_size(opened, m);
      model::match_weights(opened, m, model::lay_out(model::family_of(m).table(m)));
      return opened;
    });
    problem = data::holds_tokenizer(s.files, folder) ? tokenizer_problem(folder, documents(), s.config) : "";
    if (!trains()) return;
    make_engine();
    io::reading_weights([&] { model::load_weights(*s.engine, weights, tell_loading()); });  // moments are zero
    s.start.lap("weights");
  });
  s.keeper.tell(Note{fmt::format("starting from the weights in {}", start.string())});
  if (!problem.empty()) s.keeper.tell(Warning{problem});
}

// A machine without a card misses nothing of what cards need.
static std::vector<LeftOut> left_out_for(const device::Device& device) {
  const bool card = device.kind() != device::Kind::cpu || real_files().exists("/proc/driver/nvidia/version");
  std::vector<LeftOut> parts = left_out();
  std::erase_if(parts, [&](const LeftOut& part) { return part.on_cards && !card; });
  return parts;
}

RunHeader StepLoop::header() const {
  const auto& [session, data, ends, rescue, loop_steps, asides, saves] = *phases_;
  const TrainOptions& options = session.options;
  const config::Config& config = session.config;
  const model::LoweredModel& lowered = session.lowered();
  std::optional<double> epochs;
  const std::int64_t steps = ends.over() ? step() : ends.steps() == Ends::kNoEnd ? 0 : ends.steps();
  if (data.epoch() && steps > 0)
    epochs = static_cast<double>(config::micro_batches_before(config.train, steps) * session.groups()) /
             data.epoch()->batches;
  return {
      .config = &config,
      .folder = options.folder,
      .device = session.device.name(),
      .data = data.corpus().name(),
      .training_data = data.epoch(),
      .held_out_data = data.held_out_size(),
      .data_vocabulary = data.corpus().bytes_of_ids() ? data.corpus().vocabulary() : 0,
      .trained_on = data.trained_on(),
      .loss_trained_on = data.loss_trained_on(),
      .epochs = epochs,
      .card = session.device.kind() != device::Kind::cpu,
      .device_memory = session.device.memory_bytes(),
      .parameters = model::parameter_count(lowered.table),
      .active_parameters = model::active_count(lowered.table),
      .steps = steps,
      .first_step = step(),
      .seconds_left = ends.seconds_left(),
      .tokens_per_step = data.slots() * config.train.accumulate * session.groups(),
      .sharing = options.team.sharing,
      .engine = options.team.group ? options.team.group->engine() : "",
      .restart = options.restart,
      .memory = &lowered.set.memory,
      .batch_was_chosen = options.batch_was_chosen,
      .fp8 = config.precision.matmul == "fp8" ? model::in_words(model::fp8_products(config), options.fp8_reasons) : "",
      .peak_flops = options.peak_flops,
      .peak_source = options.peak_source,
      .left_out = left_out_for(session.device),
      .goodput = session.goodput};
}

std::vector<std::string> StepLoop::notes_on_data() const { return phases_->data.notes(); }
std::vector<std::string> StepLoop::warnings_on_data() const { return phases_->data.warnings(); }

void StepLoop::begin() {
  Session& s = phases_->session;
  began_ = steady_seconds();
  first_step_ = step();
  if (!s.engine) {
    s.make_engine();
    s.engine->initialise(static_cast<std::uint64_t>(s.config.train.seed));
    s.device.wait();
    s.start.lap("weights");
  }
  if (s.options.team.leads()) phases_->data.start_reading();
  phases_->saves.begin();
  phases_->rescue.guard().begin(step());
  if (s.lowering.norms && !s.lowered().norms.has_updates)
    s.keeper.tell(
        Note{"log.norms_every: norms of updates are left out, since a copy of the weights is larger than the "
             "activations whose memory it would take"});
  if (step() == 0 && s.config.train.eval_every > 0) {  // where it began
    phases_->asides.evaluate();
    s.start.lap("evaluation");
  }
}

// The steps.

TrainResult StepLoop::run() {
  begin();
  for (;;) try {
      return run_steps();
    } catch (const GoBack& because) {
      go_back(because);
    }
}

// A device that runs ahead is given the next step before the last one's figures are asked for, so that it never waits
// for the host; they come a step late. Where the parameters are looked at, all figures are in first. Where a micro-step
// takes long each step is waited for, so that a signal need not wait for two.
TrainResult StepLoop::run_steps() {
  auto& [session, data, ends, rescue, steps, asides, saves] = *phases_;
  Keeper& keeper = session.keeper;
  const config::Config& config = session.config;
  const bool evaluates = config.train.eval_tokens > 0 || config.train.eval_batches > 0;
  std::optional<double> eval_loss, of_average;
  steps.restart_clock();
  // Held-out data may hold a bad document. Other ranks need not have come upon it, and ranks save together.
  const auto evaluate_after = [&](const StepMetrics& m) {
    try {
      return asides.evaluate();
    } catch (const UserError&) {
      if (!session.alone()) throw;
      keeper.tell(Stepped{m});
      end_by(std::current_exception(), data.state());
    }
  };
  bool dropped = false, left = false;  // a step, and the evaluation after one
  session.goodput->turn_to(Part::steps);
  while (!at_end() && !session.stopping()) {
    dropped = !queue_step();
    if (dropped) break;
    saves.collect(Keeper::Wait::no);
    ends.stepped(step());
    const bool last = at_end();
    const auto due = [&](std::int64_t every) { return last || (every > 0 && step() % every == 0); };
    const bool evaluation = evaluates && due(config.train.eval_every), lost = folder_lost();
    const bool sample = asides.samples() && due(config.train.sample_every);
    const bool ahead = steps.run_ahead();
    if (steps.queued() == 2) keeper.tell(Stepped{steps.finish()});
    const bool checkpoint = lost || due(config.checkpoint.every) || session.save_is_due();
    if (ahead && !evaluation && !checkpoint && !sample && !session.stopping()) continue;
    StepMetrics m = steps.finish();
    if (evaluation) {
      m.sources = data.loader().shares();
      Asides::Losses losses = evaluate_after(m);
      m.take(std::move(losses.weights), data.held_out().named());
      m.eval_loss_average = losses.average;
    }
    if (last || m.eval_loss) {
      eval_loss = m.eval_loss;
      of_average = m.eval_loss_average;
    }
    left = evaluation && !m.eval_loss;
    const bool best = m.eval_loss && ends.evaluated(m.step, *m.eval_loss);
    keeper.tell(Stepped{m});
    if (sample && !session.stopping()) asides.write_samples(m.step);
    if (checkpoint || best || session.stopping()) saves.save(data.state());
    if (evaluation || checkpoint || sample) steps.restart_clock();
  }
  finish_steps();
  if (!saves.all()) saves.save(dropped ? data.before_step() : data.state());
  {
    const Goodput::Scope saving = session.goodput->in(Part::saving);
    saves.collect(Keeper::Wait::at_end);
  }
  data.tell_end();
  const bool stopped = !at_end() || (evaluates && !eval_loss);
  std::string how = stopped ? how_it_stopped(dropped, left) : counted(step(), "step") + " done";
  if (eval_loss && !stopped)
    how += fmt::format(", {} {:.4f}{}", evaluated_loss(data.loss_trained_on()), *eval_loss,
                       of_average ? fmt::format(", of the average {:.4f}", *of_average) : "");
  if (!stopped) how += ends.ending();
  session.goodput->ask(session.options.gpu);
  keeper.tell(Finished{{how},
                       stopped,
                       first_step_ > 0,
                       step() - first_step_,
                       session.state.tokens,
                       steady_seconds() - began_,
                       session.goodput->account()});
  return {stopped ? Outcome::stopped : Outcome::finished, step(), eval_loss};
}

// An error in the data does not cost the steps before it. Other ranks need not have come upon it, and ranks save
// together: there it ends all of them at once, and the last checkpoint stays.
bool StepLoop::queue_step() {
  try {
    return phases_->steps.queue();
  } catch (const BrokenData& broken) {
    const Session& s = phases_->session;
    if (!s.alone() && step() == 0) std::rethrow_exception(broken.error);
    if (!s.alone()) rethrow_with_way_on(broken.error, s, "The steps since the last checkpoint are lost");
    finish_steps();
    end_by(broken.error, phases_->data.before_step());
  }
}

void StepLoop::end_by(const std::exception_ptr& error, const data::LoaderState& loader) {
  Saves& saves = phases_->saves;
  try {
    if (!saves.all()) saves.save(loader);
    saves.collect(Keeper::Wait::at_end);
  } catch (const MachineError& disk) {  // the first of the two says more
    phases_->session.keeper.tell(Warning{disk.what()});
    std::rethrow_exception(error);
  }
  if (step() == 0) std::rethrow_exception(error);
  rethrow_with_way_on(error, phases_->session,
                      step() == 1 ? "1 step is saved" : fmt::format("{} steps are saved", step()));
}

void StepLoop::finish_steps() {
  while (phases_->steps.queued() > 0) phases_->session.keeper.tell(Stepped{phases_->steps.finish()});
}

// Ranks save together, at steps that all of them know.
bool StepLoop::folder_lost() {
  if (!phases_->session.keeper.lost()) return false;
  if (!phases_->session.alone())
    fail_machine("the run's folder was deleted or moved under it: a run on several ranks ends there");
  return true;
}

// Waits for steps that were queued before the trouble was known. The run notes only whether they were as bad.
void StepLoop::go_back(const GoBack& because) {
  Session& s = phases_->session;
  Guard& guard = phases_->rescue.guard();
  phases_->steps.finish_unseen();
  const bool broken = because.last_update || !s.engine->parameters_finite();
  const std::int64_t from = step(), asked = *guard.back_to();
  const bool good = guard.good().has_value();
  std::optional<RunState> then;
  std::string problem = "it is not there";
  going_back_ = true;
  try {
    then = s.keeper.go_back(*this, asked);
  } catch (const UserError& e) {
    problem = e.what();
  }
  going_back_ = false;
  if (!then)
    throw NotFinite(fmt::format("{}; the run cannot go back to its checkpoint of step {}: {}; see {}", because.why,
                                asked, problem, troubleshooting::kNotFinite));
  const std::int64_t to = then->step;  // or an older one, where that is not there

  const GuardState of_checkpoint = std::exchange(then->guard, s.state.guard);
  restore(*then);
  s.goodput->went_back(to);
  RolledBack back;
  back.from = from;
  back.to = to;
  back.passed_over = guard.go_back(of_checkpoint, to, broken);
  back.text = fmt::format("{}; the run goes back to step {}, {}, and {} (rollback {} of at most {})", because.why, to,
                          good ? "its newest checkpoint that is held to be good" : "its newest checkpoint",
                          batches_in_words(back.passed_over), s.state.guard.rollbacks, s.config.guard.rollbacks);
  first_step_ = std::min(first_step_, to);
  s.keeper.tell(back);
  // Saved anew with what is to be passed over: a resume from here does the same.
  phases_->saves.save(phases_->data.state());
}

std::string StepLoop::how_it_stopped(bool dropped, bool left) const {
  const Session& s = phases_->session;
  const std::string where = step() == 0 ? "before the first step" : fmt::format("after step {}", step());
  const std::string by =
      fmt::format("stopped by {} {}", s.asked_to_stop() ? s.options.stopped_by() : "a signal to another rank", where);
  if (at_end()) return by + ", the last; its held-out loss is what redline eval says";
  const std::string folder = s.options.folder.string();
  return fmt::format(
      "{}{}{}; continue with --resume{}", by, dropped ? fmt::format("; step {} was left unfinished", step() + 1) : "",
      left ? "; its evaluation was left, and is not made up for" : "", folder.empty() ? "" : " --out " + folder);
}

}  // namespace redline::train
