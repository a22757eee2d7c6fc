// The data of a run, its steps with their figures, and the answers to updates that were not made.
#include "train/step_phases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/words.h"
#include "config/load.h"
#include "config/ramps.h"
#include "data/from_config.h"
#include "model/state_files.h"
#include "optim/schedule.h"
#include "program/executor.h"
#include "train/memory_advice.h"

namespace redline::train {
namespace {

constexpr double kAhead = 1;                     // seconds of work that may be queued
constexpr std::size_t kManySteps = 20;           // that a rate must hold over
constexpr double kQuiet = 2, kBetweenNotes = 5;  // seconds

model::LoweringOptions lowering_of_rank(const config::Config& config, const Team& team, device::Kind kind) {
  model::LoweringOptions o = model::lowering_options(config, kind);
  o.sharing = team.sharing;
  o.execution.group = team.group;
  // Beside the collectives of ranks nothing is pinned: one that waited for a rank's work would hold up the others.
  o.execution.late_snapshots = team.alone();
  return o;
}

bool due(std::int64_t step, std::int64_t every) { return every > 0 && (step == 1 || step % every == 0); }

// Whether an update was not made because its norm was above the limit, while norm and loss were finite.
bool is_spike(double loss, const UpdateResult& update) {
  return update.limit > 0 && std::isfinite(loss) && std::isfinite(update.grad_norm);
}

// A hash of all that the rows of an epoch depend on. The number of rows in a batch changes them by next to nothing.
std::uint64_t hash_of_count(const config::Config& c, const data::Corpus& corpus) {
  const config::Data& d = c.data;
  return hash64(fmt::format("{} {} {} {} {} {} {} {} {} {} {}", corpus.fingerprint(), corpus.order_seed(),
                            c.train.seq_len, c.train.seq_len_from, d.packing, fmt::join(d.buckets, ","),
                            d.long_documents, d.max_segments, d.shuffle, d.shuffle_buffer, d.on_error));
}

// Says how far the reading of files is, only where it takes long.
data::DataWatch::Progress tell_reading(std::string_view key, std::function<bool()> stopping) {
  return [key, stopping = std::move(stopping), next = steady_seconds() + kQuiet](std::uint64_t done,
                                                                                 std::uint64_t of) mutable {
    if (stopping()) throw Interrupted{};
    if (steady_seconds() < next) return;
    next = steady_seconds() + kBetweenNotes;
    log::note("{}: reading its files, which were moved or written to, to compare them: {:.1f} of {:.1f} GiB", key,
              gib(done), gib(of));
  };
}

}  // namespace

Session::Session(const TrainOptions& o, device::Device& d, FileSystem& f, Keeper& k)
    : options(o),
      config(o.config),
      device(d),
      files(f),
      keeper(k),
      goodput(std::make_shared<Goodput>(o.start ? std::optional(o.start->began()) : std::nullopt)),
      start(o.start.value_or(StartLaps())),
      lowering(lowering_of_rank(o.config, o.team, d.kind())) {}

void Session::require_memory() const {
  const Team& team = options.team;
  if (!engine) train::require_memory(config, to_bind.set.memory.device.total, device, team.sharing, team.ranks_here);
}

void Session::make_engine() {
  if (engine) return;
  require_memory();
  start.lap("data");
  // The choice of products in eight bits has measured for this start already.
  program::tune_products(device, config.kernels.tuning,
                         lowering.fp8.empty() ? program::TuningTime::begins : program::TuningTime::goes_on);
  if (!keeper.saves() || !make_engine_with_snapshot())
    engine = std::make_unique<model::Engine>(config.model, lowering, std::move(to_bind), device);
  const program::Executor::Made& made = engine->executor().made();
  start.lap("memory", made.memory);
  start.lap("host memory", made.host_memory);
  start.lap("products", made.products);
}

void Session::tell_ready() {
  const double felt = device.kind() == device::Kind::cpu ? 5 : 1;  // seconds
  if (start.seconds() >= felt) keeper.tell(Note{start.in_words()});
}

bool Session::make_engine_with_snapshot() {
  const model::SnapshotBytes allowed{config::bytes_of_amount(config.memory.limit),
                                     config::bytes_of_amount(config.memory.host_limit)};
  const model::SnapshotBytes room = model::room_for_snapshot(to_bind, device, allowed, options.team.ranks_here);
  for (const program::Memory memory : model::snapshot_memories(to_bind, room)) {
    model::LoweredModel saving = to_bind;
    model::add_snapshot(saving, memory);
    try {
      engine = std::make_unique<model::Engine>(config.model, lowering, std::move(saving), device);
      return true;
    } catch (const MachineError&) {  // another process was faster, or no more memory can be pinned
    }
  }
  return false;
}

RunData::RunData(Session& session)
    : session_(session),
      loader_(open_loader()),
      held_out_(session.config, session.lowering.batch, session.options.team.sharing),
      watch_(loader_.corpus()),
      epoch_(find_epoch()),
      batch_(session.lowering.batch) {}

// A batch for which the loader has no room is rather one for which the device has none, and that is what to mend.
data::Loader RunData::open_loader() {
  const config::Config& config = session_.config;
  config::require_data(config);
  try {
    return data::Loader(data::open_training_corpus(data::corpus_options(config)), training_options());
  } catch (const data::NoRoomForBatches&) {
    const device::Device& device = session_.device;
    const Team& team = session_.options.team;
    require_memory(config, memory_needed(config, device.kind(), team.sharing), device, team.sharing, team.ranks_here);
    throw;
  }
}

data::LoaderOptions RunData::training_options() {
  const config::Config& config = session_.config;
  data::LoaderOptions o =
      data::loader_options(config.data, session_.lowering.batch, session_.device.kind() == device::Kind::cpu);
  o.rank = session_.options.team.sharing.group();
  o.ranks = static_cast<int>(session_.groups());
  o.packer.cut_later = config.train.seq_len_from;
  if (config.data.debug) o.report = [this](const data::PipelineStats& f) { session_.keeper.tell(Pipeline{f}); };
  return o;
}

// A stream is counted where train.epochs asks for it: by rank 0, once in a run, whose folder keeps the count. So a
// resume reads nothing twice, and its schedule is the same to the bit.
std::optional<data::Epoch> RunData::find_epoch() {
  const config::Config& config = session_.config;
  if (const auto known = loader_.epoch(); known || config.train.epochs == 0 || loader_.corpus().endless()) return known;
  const Team& team = session_.options.team;
  std::string words;
  if (team.leads()) {
    const std::uint64_t of = hash_of_count(config, loader_.corpus());
    if (session_.options.resume) counted_ = read_counted_epoch(session_.files, session_.options.folder);
    if (counted_ && counted_->of != of) counted_.reset();  // other data, or other rows
    if (!counted_) counted_ = count();
    counted_->of = of;
    words = to_text(*counted_);
  }
  if (team.communicator) counted_ = parse_counted_epoch(team.communicator->broadcast(words), "rank 0");
  const auto rows = static_cast<double>(session_.lowering.batch.rows);
  return data::Epoch{counted_->size, static_cast<double>(counted_->rows) / rows};
}

CountedEpoch RunData::count() const {
  const double began = steady_seconds();
  data::LoaderOptions options =
      data::loader_options(session_.config.data, session_.lowering.batch, session_.device.kind() == device::Kind::cpu);
  options.packer.cut_later = session_.config.train.seq_len_from;
  options.feed.quiet = true;  // the steps name what they pass over
  const data::Epoch found =
      data::count_epoch(data::open_training_corpus(data::corpus_options(session_.config)), std::move(options),
                        [&](const data::EpochSize& so_far, std::optional<double> share) {
                          if (session_.alone()) end_if_asked(session_.options.stop);
                          session_.tell_alive();
                          session_.keeper.tell(Counting{so_far, share});
                        });
  session_.keeper.tell(Note{
      fmt::format("train.epochs: data.train was read once to count it ({}, {} in {:.1f} s); the run keeps the count",
                  counted(found.documents, "document"), counted(found.tokens, "token"), steady_seconds() - began)});
  return {found, std::llround(found.batches * static_cast<double>(session_.lowering.batch.rows)), 0};
}

void RunData::require_vocabulary() const {
  std::vector<const data::Corpus*> corpora = held_out_.corpora();
  corpora.insert(corpora.begin(), &loader_.corpus());
  for (const data::Corpus* corpus : corpora) {
    data::require_vocabulary(*corpus, session_.config.model.vocab,
                             session_.config.origins.prefix({"model.vocab", "data.train", "data.eval"}),
                             session_.config.model.init_from);
    data::require_same_beginning(loader_.corpus(), "data.train", *corpus, "data.eval");
  }
}

void RunData::watch_held_out() {
  if (!data::has_held_out_files(data::corpus_options(session_.config))) return;
  eval_watch_.emplace(held_out_.corpora());
  std::vector<Path> training = corpus().files();
  if (session_.config.data.eval.empty())  // an entry of a mixture may hold out a part of its files
    for (const data::Corpus* held_out : held_out_.corpora())
      for (const Path& file : held_out->files()) std::erase(training, file);
  if (session_.options.team.leads()) trained_on_ = held_out_.trained_on(corpus(), training);
}

std::vector<std::string> RunData::trained_on() const {
  std::vector<std::string> names;
  for (const auto& [name, warning] : trained_on_) names.push_back(name);
  return names;
}

bool RunData::loss_trained_on() const {
  return std::ranges::any_of(trained_on_, [&](const auto& set) { return set.first == held_out_.first(); });
}

std::vector<std::string> RunData::notes() const { return data::roles_in_words(data::corpus_options(session_.config)); }

std::vector<std::string> RunData::warnings() const {
  constexpr std::int64_t kMostOfBytes = 512;
  std::vector<std::string> sentences;
  for (const auto& [name, warning] : trained_on_) sentences.push_back(warning);
  const config::Config& config = session_.config;
  if (config.model.vocab > kMostOfBytes && data::is_text_of_no_tokenizer(data::corpus_options(config)))
    sentences.push_back(fmt::format(
        "data.train is text and data.tokenizer is empty, so that it is read as bytes: {} of the {} ids of model.vocab "
        "are used; name the tokenizer, or leave model.vocab out",
        corpus().vocabulary(), config.model.vocab));
  return sentences;
}

std::int64_t RunData::steps_of_run() const {
  const config::Config& config = session_.config;
  if (config.train.epochs > 0 && !epoch_)
    fail_user(
        "{}train.epochs ({}) counts passes over data that end, and data.train ({}) has no end; give "
        "train.max_steps instead",
        config.origins.prefix({"train.epochs", "data.train"}), config.train.epochs, loader_.corpus().name());
  return total_steps(config.train, epoch_ ? std::optional(epoch_->batches) : std::nullopt, session_.groups());
}

bool RunData::compare(const RunState& before, const Path& checkpoint, const std::function<void()>& new_losses) {
  const bool other = differs(watch_, before.data, "data.train", checkpoint);
  if (other && !eval_watch_) new_losses();
  if (before.eval && eval_watch_) {
    if (differs(*eval_watch_, *before.eval, "data.eval", checkpoint)) new_losses();
  } else if (before.eval.has_value() != eval_watch_.has_value() && !before.data.ends_only) {
    if (!session_.options.allow_change)
      fail_user("data.eval {}, and {} was evaluated on {}; give it back, or allow the change with --allow-change",
                eval_watch_ ? "is set" : "is empty", checkpoint.string(),
                eval_watch_ ? "a part of data.train that training never saw" : "other data");
    session_.keeper.tell(Note{"held-out losses from here on are of other data than those before"});
    new_losses();
  }
  return other;
}

bool RunData::differs(data::DataWatch& watch, const data::DataIdentity& before, std::string_view key,
                      const Path& checkpoint) {
  const bool eval = key == "data.eval";
  const data::Corpus& corpus = eval ? held_out_.corpus() : loader_.corpus();
  const std::string where = checkpoint.string();
  switch (watch.compare(before, tell_reading(key, [this] { return session_.stopping(); }))) {
    case data::DataMatch::same: return false;
    case data::DataMatch::same_bytes:
      session_.keeper.tell(
          Note{fmt::format("{}: its files were moved, copied or touched; every byte is as it was", key)});
      return false;
    case data::DataMatch::same_blocks:
      session_.keeper.tell(
          Warning{fmt::format("{}: its files were moved, copied or written to since {}. Sizes and the blocks that were "
                              "compared are the same; the run had not read all of them when it was saved, so that the "
                              "rest cannot be compared",
                              key, where)});
      return false;
    case data::DataMatch::unknown:
      if (session_.options.allow_change) break;
      fail_user(
          "{}: {} is from an earlier redline, which compared no more than the ends of files: whether the data are the "
          "same is not known; --allow-change goes on with them, and begins their order anew",
          key, where);
    case data::DataMatch::other:
      if (session_.options.allow_change) break;
      fail_user(
          "{} ({}) is not what {} was {} on; give it back its data ({}=PATH, if they were moved), allow the change "
          "with --allow-change, or start another run with another --out",
          key, corpus.name(), where, eval ? "evaluated" : "trained", key);
  }
  session_.keeper.tell(Note{fmt::format(
      "{} is other data than before: {}", key,
      eval ? "held-out losses from here on cannot be compared with those before" : "it is read from its beginning")});
  return true;
}

void RunData::start_reading() {
  watch_.start_reading();
  if (eval_watch_) eval_watch_->start_reading();
}

void RunData::identify(RunState& state) {
  const bool wait = !session_.stopping();
  state.data = watch_.identity(wait);
  state.eval = eval_watch_ ? std::optional(eval_watch_->identity(wait)) : std::nullopt;
}

// The checkpoint keeps what the data were when they were opened: a resume compares the files with that.
void RunData::tell_changed_files() {
  const auto tell = [&](data::DataWatch& watch, std::string_view key) {
    const std::vector<Path> changed = watch.changed();
    if (changed.empty()) return;
    const std::size_t more = changed.size() - 1;
    session_.keeper.tell(Warning{fmt::format(
        "{}: {}{} changed on the disk while the run reads it: steps may have seen either state. The run goes on; a "
        "resume will refuse the data unless every byte is as it was",
        key, changed[0].string(), more > 0 ? fmt::format(" and {}", counted(more, "other file")) : "")});
  };
  tell(watch_, "data.train");
  if (eval_watch_) tell(*eval_watch_, "data.eval");
}

// Where train.epochs is set, the run ends with them.
void RunData::tell_repeats() const {
  if (session_.config.train.epochs > 0 || before_step_.next.epoch > 0 || loader_.state().next.epoch == 0) return;
  session_.keeper.tell(Warning{
      fmt::format("step {} begins to read the training data a second time; train.epochs says how often a run is to "
                  "read them",
                  session_.state.step + 1)});
}

void RunData::tell_end() {
  loader_.report_now();
  const data::LoaderState& s = loader_.state();
  if (s.truncated_tokens > 0)
    session_.keeper.tell(Note{fmt::format("data.long_documents dropped {} of documents that are longer than a row",
                                          counted(s.truncated_tokens, "token"))});
  if (s.empty_documents > 0)
    session_.keeper.tell(
        Note{fmt::format("documents of less than two tokens that were passed over: {}", s.empty_documents)});
  std::string words;  // the share that each entry of data.train gave, and how often it was read
  for (const data::SourceShare& share : loader_.shares())
    words += fmt::format("{}{} {:.2f}%{}", words.empty() ? "" : "; ", share.name, 100 * share.share,
                         share.epochs ? fmt::format(", read {:.2f} times", *share.epochs) : "");
  if (!words.empty()) session_.keeper.tell(Note{fmt::format("shares of the training tokens: {}", words)});
}

data::Batch& RunData::next() {
  bool there = false;
  try {
    there = loader_.next(batch_);
  } catch (const std::exception&) {
    throw BrokenData{std::current_exception()};
  }
  if (!there) fail_user("data.train has no documents to train on");
  return batch_;
}

Fp8Observation::Fp8Observation(std::vector<model::Fp8Seen> seen) : tensors(std::move(seen)) {
  const auto take = [&](double model::Fp8Seen::*share, auto& most, auto& whose) {
    const auto it = std::ranges::max_element(tensors, {}, share);
    if (it == tensors.end()) return;
    most = (*it).*share;
    whose = it->name;
  };
  take(&model::Fp8Seen::saturated, saturated, most_saturated);
  take(&model::Fp8Seen::zero, zero, most_zero);
}

NormsObservation::NormsObservation(std::vector<model::TensorNorm> norms) : tensors(std::move(norms)) {
  double weights = 0, updates = 0;
  for (const model::TensorNorm& t : tensors) {
    weights += t.weight * t.weight;
    updates += t.update * t.update;
  }
  weight = std::sqrt(weights);
  if (std::isfinite(updates)) update = std::sqrt(updates);
}

RouterObservation::RouterObservation(model::RouterFigures figures, bool look)
    : balance(figures.balance), z_loss(figures.z_loss) {
  double entropies = 0;
  for (const double e : figures.entropy) entropies += e;
  entropy = entropies / static_cast<double>(figures.entropy.size());
  for (const std::vector<double>& loads : figures.loads) {
    const auto [least, most] = std::ranges::minmax(loads);
    largest_load = std::max(largest_load.value_or(most), most);
    smallest_load = std::min(smallest_load.value_or(least), least);
  }
  if (look) by_layer = std::make_shared<model::RouterFigures>(std::move(figures));
}

// Each of a size's gradients has n pairs: squares / pairs = n |G|^2 + S.
std::optional<NoiseEstimate> estimate_noise(const GradientSize& small, const GradientSize& large) {
  const auto per_pair = [](const GradientSize& g) { return g.squares / g.pairs; };
  const double n = small.pairs / small.count, many = large.pairs / large.count;
  NoiseEstimate e;
  e.signal = (per_pair(large) - per_pair(small)) / (many - n);
  e.noise = per_pair(small) - n * e.signal;
  if (!(many > n) || !std::isfinite(e.signal) || !std::isfinite(e.noise)) return std::nullopt;
  return e;
}

void NoiseScale::add(const NoiseEstimate& look) {
  looks_ = std::min(looks_ + 1, kReach);
  mean_.signal += (look.signal - mean_.signal) / looks_;
  mean_.noise += (look.noise - mean_.noise) / looks_;
}

std::optional<double> NoiseScale::pairs() const {
  if (!(mean_.signal > 0) || !(mean_.noise > 0)) return std::nullopt;
  return mean_.noise / mean_.signal;
}

void QueuedStep::clear() {
  pairs = real_tokens = 0;
  flops = flops_palm = data_wait = 0;
  documents.clear();
  fp8.reset();
  norms.reset();
}

void QueuedStep::take_counts(const StepCounts& counts) {
  pairs = static_cast<std::int64_t>(counts.pairs);
  real_tokens = static_cast<std::int64_t>(counts.real_tokens);
  flops = counts.flops;
  flops_palm = counts.flops_palm;
}

double QueuedStep::learned() const {
  return static_cast<double>(pairs) / static_cast<double>(std::max<std::int64_t>(real_tokens, 1));
}

StepMetrics QueuedStep::metrics(double loss, double norm, const model::StepTime& time, std::int64_t slots,
                                double peak) const {
  const double seconds = time.seconds;
  StepMetrics m;
  m.step = step;
  m.time = unix_seconds();
  m.loss = loss;
  m.grad_norm = norm;
  m.lr = lr;
  m.step_ms = 1e3 * seconds;
  m.device_ms = 1e3 * time.working;
  m.idle_ms = std::max(0.0, m.step_ms - m.device_ms);
  m.tokens = pairs;
  m.epoch = epoch;
  m.tokens_per_s = static_cast<double>(pairs) / seconds;
  m.padding = 1 - static_cast<double>(real_tokens) / static_cast<double>(slots);
  m.tflops = flops / seconds * 1e-12;
  if (peak > 0) {
    m.mfu = flops / seconds / peak;
    m.mfu_palm = flops_palm / seconds / peak;
  }
  m.data_wait_ms = 1e3 * data_wait;
  m.fp8 = fp8;
  return m;
}

std::string QueuedStep::trouble(double loss, const UpdateResult& update) const {
  const std::string where = fmt::format("on the batch of documents {}", documents_in_words(documents));
  if (is_spike(loss, update))
    return fmt::format("step {}: the gradient norm {:g} is above its limit of {:g} (loss {:g}) {}", step,
                       update.grad_norm, update.limit, loss, where);
  return fmt::format("step {}: {} is not finite (loss {}, gradient norm {}) {}", step,
                     std::isfinite(loss) ? "the gradient norm" : "the loss", loss, update.grad_norm, where);
}

void Rescue::judge(const QueuedStep& step, double loss, const UpdateResult& update) {
  if (update.finite == 1.0f) return guard_.made(step.draw, step.documents);
  const std::string trouble = step.trouble(loss, update);
  const bool spike = is_spike(loss, update);
  switch (guard_.left_out(step.draw, step.documents)) {
    case Guard::Verdict::skip: {
      Skipped skipped;
      skipped.text = fmt::format("{}; the update was left out ({} in a row, of at most {})", trouble, guard_.streak(),
                                 session_.config.guard.skips);
      skipped.step = step.step;
      skipped.reason = spike ? "spike" : "not finite";
      skipped.loss = loss;
      skipped.norm = static_cast<double>(update.grad_norm);
      skipped.limit = static_cast<double>(update.limit);
      skipped.documents = each_once(step.documents);
      session_.keeper.tell(skipped);
      return;
    }
    case Guard::Verdict::go_back: throw GoBack{trouble};
    case Guard::Verdict::end: break;
  }
  const std::int64_t before = guard_.streak() - 1;
  throw NotFinite(fmt::format(
      "{}; the update was not made{} and the last checkpoint stays: try a lower optim.lr (now {:g}), a longer "
      "optim.warmup_steps or optim.clip{}, then {}; see {}",
      trouble, before > 0 ? fmt::format(", nor the {} before it (guard.skips)", before) : "", step.lr,
      spike ? ", or a higher guard.spike" : "", advice(), troubleshooting::kNotFinite));
}

// A run whose newest checkpoint is finite and broken all the same ends at the same step for ever: the good one is
// named.
std::string Rescue::advice() const {
  const std::optional<std::int64_t> good = guard_.good();
  return good ? fmt::format("--resume --from-step {}, the newest checkpoint that is held to be good", *good)
              : "--resume from the last checkpoint";
}

void Rescue::refuse(std::string trouble) {
  if (guard_.may_go_back()) throw GoBack{std::move(trouble), true};
  throw NotFinite(
      fmt::format("{}; try a lower optim.lr and {}; see {}", trouble, advice(), troubleshooting::kNotFinite));
}

Steps::Steps(Session& session, RunData& data, const Ends& ends, Rescue& rescue)
    : session_(session),
      data_(data),
      ends_(ends),
      rescue_(rescue),
      rehearsed_(!session.device.runs_ahead()),
      peak_(session.options.peak_flops) {}

bool Steps::queue() {
  model::Engine& engine = *session_.engine;
  RunState& state = session_.state;
  const config::Config& config = session_.config;
  QueuedStep& s = steps_[queued_];
  s.step = state.step + 1;
  s.lr = optim::learning_rate(config, state.step, ends_.steps(), session_.groups());
  // A rank that left a step would leave the others waiting.
  engine.drop_on(session_.alone() ? session_.options.drop : nullptr);
  try {
    micro_steps(s);
  } catch (const Interrupted&) {
    return false;
  }
  ++queued_;
  engine.set_step(static_cast<std::uint64_t>(state.step), s.lr,
                  StepCounts{.pairs = static_cast<double>(s.pairs),
                             .real_tokens = static_cast<double>(s.real_tokens),
                             .flops = s.flops,
                             .flops_palm = s.flops_palm,
                             .stop = session_.asked_to_stop() ? 1.0 : 0.0,
                             .save = session_.minutes_are_over() ? 1.0 : 0.0,
                             .slow = micro_step_seconds_ < kAhead ? 0.0 : 1.0},
                  0, optim::average_share(config.train, state.step, ends_.steps()));
  if (s.norms)
    engine.update_with_norms();
  else
    engine.update();
  engine.post_result();
  if (s.norms) {
    const bool small = s.norms->small.counts.pairs > 0;
    s.norms = engine.norm_sums();
    if (!small) s.norms->small = {};
  }
  state.step += 1;
  state.guard.drawn += 1;
  session_.tell_alive();
  return true;
}

void Steps::micro_steps(QueuedStep& sums) {
  model::Engine& engine = *session_.engine;
  const config::Config& config = session_.config;
  const std::int64_t done = session_.state.step;
  sums.clear();
  pass_over_batches();
  sums.draw = session_.state.guard.drawn;
  data_.begin_step();
  sums.micro_batches = config::micro_batches(config.train, done);
  const std::int64_t longest = config::longest_document(config.train, done);
  for (std::int64_t micro = 0; micro < sums.micro_batches; ++micro) {
    const double wait = steady_seconds();
    data::Batch& batch = data_.next();
    sums.data_wait += steady_seconds() - wait;
    sums.documents.insert(sums.documents.end(), batch.sources.begin(), batch.sources.end());
    if (!ready_) session_.start.lap("first batch");
    if (!std::exchange(rehearsed_, true)) {
      const Goodput::Scope tuning = session_.goodput->in(Part::start_up);
      const double chosen = engine.executor().choosing();
      engine.rehearse(batch);
      session_.start.part("attention", engine.executor().choosing() - chosen);
      session_.start.lap("first runs");
    }
    if (!std::exchange(ready_, true)) session_.tell_ready();
    batch.cut_documents(longest);  // after the rehearsal, which chooses kernels for the whole run
    engine.clock().wait_for_all_but(micro_steps_ahead());
    engine.upload(batch);
    const data::TokenCounts here = engine.counts_here(batch);
    const std::int64_t number = micro * session_.groups() + session_.options.team.sharing.group();
    engine.set_step(static_cast<std::uint64_t>(done), sums.lr, 0,
                    static_cast<std::uint64_t>(number * batch.shape.tokens() + here.first));
    const bool last = micro + 1 == sums.micro_batches;
    if (micro == 0 && !session_.lowered().fp8.empty() && due(sums.step, config.log.fp8_every))
      sums.fp8.emplace(engine.watched_micro_step(true, last));
    else
      engine.micro_step(micro == 0, last);
    if (micro == 0 && due(sums.step, config.log.norms_every)) {
      sums.norms.emplace();
      sums.norms->small.counts.pairs = last ? 0 : static_cast<double>(here.pairs);
      if (!last) engine.small_gradient(static_cast<std::uint64_t>(done), sums.norms->small.counts.pairs);
    }
    sums.pairs += here.pairs;
    sums.real_tokens += here.real_tokens;
    sums.flops += engine.model_flops(batch);
    sums.flops_palm += engine.model_flops_palm(batch);
  }
  const data::Loader& loader = data_.loader();
  sums.truncated_tokens = loader.state().truncated_tokens;
  sums.epoch = loader.epochs_read();
  sums.sources = loader.shares();
  data_.tell_repeats();
}

// Passes over as many batches as the steps had that drew them: those from here on, one after another.
void Steps::pass_over_batches() {
  Guard& guard = rescue_.guard();
  for (std::int64_t step = session_.state.step; guard.passes_over(); guard.passed_over(), ++step) {
    data_.begin_step();
    for (std::int64_t micro = config::micro_batches(session_.config.train, step); micro > 0; --micro) data_.next();
  }
}

// As many as the device does within about a second: what is queued cannot be taken back from a card.
std::size_t Steps::micro_steps_ahead() const {
  return micro_step_seconds_ > 0 ? static_cast<std::size_t>(std::max(1.0, kAhead / micro_step_seconds_)) : 1;
}

// Not before the first step's time is known: its figures would come with those of the second, which may take long.
bool Steps::run_ahead() const { return session_.device.runs_ahead() && micro_step_seconds_ > 0 && !slow_; }

QueuedStep& Steps::take_oldest() {
  std::swap(steps_[0], steps_[1]);
  --queued_;
  return steps_[1];
}

StepMetrics Steps::finish() {
  const model::Engine::StepResult result = session_.engine->take_result();
  // Not beside the first step, whose programs are captured, nor beside the second where that makes a late update.
  const bool captured = micro_step_seconds_ > 0 || !session_.lowered().late_state.present();
  if (captured) session_.engine->begin_snapshots();
  const UpdateResult& update = result.update;
  QueuedStep& s = take_oldest();
  RunState& state = session_.state;
  micro_step_seconds_ = result.time.seconds / static_cast<double>(s.micro_batches);
  if (!session_.alone()) s.take_counts(update.counts);
  slow_ = session_.alone() ? micro_step_seconds_ >= kAhead : update.counts.slow > 0;
  state.tokens += s.pairs;
  if (update.counts.stop > 0) session_.a_rank_stops = true;
  if (update.counts.save > 0) session_.save_after = s.step + 1;
  if (s.pairs == 0)  // all of its tokens were context: its gradient is zero, and its loss a mean over nothing
    session_.keeper.tell(Warning{fmt::format(
        "step {} had no token of an answer to learn from, and its loss of 0 means nothing: questions longer than "
        "train.seq_len lose their answers; raise it, or train.batch_size",
        s.step)});
  const double loss = result.update.loss_sum / static_cast<double>(std::max<std::int64_t>(s.pairs, 1));
  rescue_.judge(s, loss, update);
  const std::int64_t ranks = session_.ranks();
  if (session_.options.peak_was_measured) raise_peak(s.flops / static_cast<double>(ranks) / result.time.seconds);
  StepMetrics m = s.metrics(loss, update.grad_norm, result.time, data_.slots() * s.micro_batches * session_.groups(),
                            peak_ * static_cast<double>(ranks));
  if (s.norms) m.norms = norms_of(s, update);
  if (!result.router.empty())
    m.router.emplace(model::router_figures(session_.config.model, result.router, static_cast<double>(s.pairs)),
                     due(s.step, session_.config.log.router_every));
  if (session_.config.data.long_documents == "truncate") m.truncated_tokens = s.truncated_tokens;
  if (data_.corpus().masked()) m.learned = s.learned();
  m.memory_gib = gib(session_.engine->executor().arena_bytes());
  if (session_.options.gpu) m.gpu = session_.options.gpu->latest();
  if (!session_.alone()) m.ranks = paces(result.time.seconds);
  session_.goodput->stepped(m);
  if (m.account) m.sources = std::move(s.sources);
  m.skipped = state.guard.skipped;
  m.rollbacks = state.guard.rollbacks;
  return m;
}

void Steps::finish_unseen() {
  while (queued_ > 0) {
    const UpdateResult update = session_.engine->take_result().update;
    const QueuedStep& s = take_oldest();
    if (update.finite != 1.0f) rescue_.guard().left_out(s.draw, s.documents);
  }
}

// Ranks have about as many pairs each. In fsdp those that hold one copy of the state add up the gradients of every
// micro-step, in the other modes all add up those of the last.
NormsObservation Steps::norms_of(const QueuedStep& step, const UpdateResult& update) {
  NormsObservation seen(model::tensor_norms(session_.lowered().table, *step.norms, std::max(update.counts.pairs, 1.0)));
  const auto squares = [](const UpdateResult& r) {
    const double norm = static_cast<double>(r.grad_norm) * r.counts.pairs;
    return norm * norm;
  };
  const UpdateResult& small = step.norms->small;
  const dist::Sharing& sharing = session_.options.team.sharing;
  // Ranks that have a part of their rows have a part of their gradient, too, whose size means nothing.
  if (small.counts.pairs > 0 && update.finite == 1.0f && sharing.ranks / sharing.apart() % sharing.sequence == 0) {
    const GradientSize first{squares(small), small.counts.pairs, static_cast<double>(sharing.apart())};
    if (const auto look = estimate_noise(first, {squares(update), update.counts.pairs})) noise_.add(*look);
    seen.noise_scale = noise_.pairs();
  }
  return seen;
}

// Nothing runs above a true peak for long: one that most of the last steps pass was measured while the machine was
// busy.
void Steps::raise_peak(double rate) {
  rates_.push_back(rate);
  if (rates_.size() < kManySteps) return;
  if (rates_.size() > kManySteps) rates_.erase(rates_.begin());
  std::vector<double> sorted = rates_;
  std::ranges::nth_element(sorted, sorted.begin() + kManySteps / 2);
  if (sorted[kManySteps / 2] <= peak_) return;
  peak_ = sorted[kManySteps / 2];
  if (std::exchange(peak_was_low_, true)) return;
  session_.keeper.tell(Warning{
      fmt::format("the last {} steps were faster than the peak that was measured at the start, when the machine "
                  "was busy: mfu is held against them from here on",
                  kManySteps)});
}

void Steps::restart_clock() {
  session_.engine->clock().restart();
  waited_ = session_.engine->executor().waited_for_ranks().value_or(0);
}

// Every rank sends its own pace; rank 0 knows all of them, at most a second old.
RankPaces Steps::paces(double step_seconds) {
  RankPaces p;
  if (const std::optional<double> waited = session_.engine->executor().waited_for_ranks())
    p.wait_ms = 1e3 * (*waited - std::exchange(waited_, *waited));
  const Team& team = session_.options.team;
  if (team.pace) team.pace(step_seconds - 1e-3 * p.wait_ms.value_or(0));
  if (!team.leads() || !team.paces) return p;
  std::vector<double> all = team.paces();
  const auto slowest = std::ranges::max_element(all);
  if (slowest == all.end() || *std::ranges::min_element(all) <= 0) return p;  // one of them is not known yet
  p.slowest = slowest - all.begin();
  p.slowest_ms = 1e3 * *slowest;
  std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
  p.median_ms = 1e3 * all[all.size() / 2];
  return p;
}

}  // namespace redline::train
