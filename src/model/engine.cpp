// Moves batches, step states and parameters between the host and a bound program set, and runs its programs.
#include "model/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "model/fp8_linears.h"
#include "optim/adamw.h"
#include "optim/schedule.h"

namespace redline::model {

StepClock::StepClock(device::Device& device) : spans_(device.make_spans()) { restart(); }

StepClock::Span StepClock::unused() {
  if (unused_.empty()) return made_++;
  const Span span = unused_.back();
  unused_.pop_back();
  return span;
}

void StepClock::restart() {
  REDLINE_CHECK(finished_.empty(), "{} steps were not taken", finished_.size());
  unused_.insert(unused_.end(), programs_.begin(), programs_.end());
  programs_.clear();
  spans_->begin(last_);
  spans_->end(last_);
}

void StepClock::begin() {
  programs_.push_back(unused());
  spans_->begin(programs_.back());
}

void StepClock::end() { spans_->end(programs_.back()); }

void StepClock::finish() {
  REDLINE_CHECK(!programs_.empty(), "a step without a program");
  const Span before = std::exchange(last_, programs_.back());
  finished_.push_back({before, std::exchange(programs_, {})});
}

StepTime StepClock::take() {
  REDLINE_CHECK(!finished_.empty(), "no step is under way");
  const Step step = std::move(finished_.front());
  finished_.pop_front();
  spans_->wait(step.programs.back());
  StepTime time;
  time.seconds = spans_->between_ends(step.before, step.programs.back());
  for (const Span span : step.programs) time.working += spans_->length(span);
  unused_.push_back(step.before);
  unused_.insert(unused_.end(), step.programs.begin(), step.programs.end() - 1);
  return time;
}

void StepClock::wait_for_all_but(std::size_t programs) {
  if (programs_.size() > programs) spans_->wait(programs_[programs_.size() - programs - 1]);
}

using program::ValueId;

namespace {

using optim::StateKind;

bool has_scales(const optim::StateTable& table) {
  return std::ranges::find(table, StateKind::fp8_scales, &optim::StateArray::kind) != table.end();
}

// What a program asks for and what it leaves, written down once, so that callers need not know an order. Where ranks
// update weights by parts, an update leaves each rank with its own part alone.
struct Rule {
  std::string_view program;
  bool scales = false;         // its products may take eight bits: scales are found first where there are none
  bool whole = false;          // reads all weights: they are gathered first
  bool stops = false;          // ends where the flag of drop_on() is set; an update never does
  bool takes_average = false;  // may run while the average stands in the weights' place
  bool late = false;           // may run before a late update is made, or makes it
  enum class Leaves { as_they_were, whole, in_parts } leaves = Leaves::as_they_were;
};
constexpr Rule kRules[] = {
    {.program = kFirst, .scales = true, .stops = true, .leaves = Rule::Leaves::whole},  // it gathers them itself
    {.program = kOnly, .scales = true, .stops = true, .leaves = Rule::Leaves::whole},
    {.program = kAccumulate, .scales = true, .stops = true},
    {.program = kLast, .scales = true, .stops = true},
    {.program = kUpdate, .leaves = Rule::Leaves::in_parts},
    {.program = kUpdateWithNorms, .leaves = Rule::Leaves::in_parts},
    {.program = kNorm, .late = true},
    {.program = kUpdateAndFirst, .scales = true, .late = true, .leaves = Rule::Leaves::in_parts},
    {.program = kFinish, .late = true, .leaves = Rule::Leaves::in_parts},
    {.program = kSmallGradient},
    {.program = kStartAverage},
    {.program = kShowAverage, .leaves = Rule::Leaves::in_parts},
    {.program = kShowWeights, .takes_average = true, .leaves = Rule::Leaves::in_parts},
    {.program = kGather, .takes_average = true, .leaves = Rule::Leaves::whole},
    {.program = kCheck},
    {.program = kResults[0], .late = true},
    {.program = kResults[1], .late = true},
    {.program = kSnapshot},
    {.program = kAfterSnapshot, .late = true},
    {.program = kRefresh, .leaves = Rule::Leaves::in_parts},
    {.program = kEvaluate, .whole = true, .stops = true, .takes_average = true},
    {.program = kLogits, .whole = true, .takes_average = true},
    {.program = kPrefill},
    {.program = kDecode},
};

}  // namespace

Engine::Engine(const config::Model& model, const LoweringOptions& options, device::Device& device)
    : Engine(model, options, lower(model, options), device) {}

Engine::Engine(const config::Model& model, const LoweringOptions& options, LoweredModel lowered, device::Device& device)
    : model_(model),
      options_(options),
      lowered_(std::move(lowered)),
      executor_(program::make_executor(lowered_.set, device, options.execution)),
      device_(device),
      clock_(device) {
  REDLINE_CHECK(options.kind == device.kind(), "programs for another kind of device");
  if (options.training) flops_ = program::model_flops(lowered_.set.find(kFirst));
  if (lowered_.norms.bounds.present()) executor_->write(lowered_.norms.bounds, tensor_bounds(lowered_));
  std::set<ValueId> saved;
  for (std::size_t row = 0; row < lowered_.state.size(); ++row)
    if (!lowered_.state[row].file.empty()) saved.insert(lowered_.set.owner(lowered_.state_values[row]));
  for (const program::Program& p : lowered_.set.programs)
    for (const program::Node& node : p.nodes) {
      if (std::holds_alternative<dist::GatherShards<ValueId>>(node.op)) continue;  // the parts of other ranks
      program::each_operand(node.op, [&](std::string_view, ValueId id, Access access) {
        if (access != Access::read && saved.contains(lowered_.set.owner(id))) changing_.insert(p.name);
      });
    }
}

Engine::~Engine() = default;

void Engine::start_average() {
  if (lowered_.at(optim::kAverage).present()) run(kStartAverage);
}

void Engine::forget(StateKind kind) {
  for (std::size_t i = 0; i < lowered_.state.size(); ++i)
    if (lowered_.state[i].kind == kind) executor_->clear(lowered_.state_values[i]);
}

void Engine::forget_records() { forget(StateKind::fp8_records); }

void Engine::forget_scales() {
  forget(StateKind::fp8_scales);
  forget_records();
  calibrated_ = !has_scales(lowered_.state);
}

// Two passes, since what the first one casts without scales is rough. A step's first micro-step writes losses and
// gradients anew, so nothing but scales stays; nor do these where a pass is interrupted.
bool Engine::calibrate() {
  keep_snapshot();
  const std::int64_t longest = given_ ? given_->shortest_cut(kCalibratedTokens) : 0;
  const bool cut = given_ && given_->pieces(longest) > given_->documents;
  if (cut) {
    data::Batch shorter = *given_;
    shorter.cut_documents(longest);
    place(shorter);
  }
  try {
    for (int pass = 0; pass < 2; ++pass) {
      executor_->run(kFirst, nullptr, stop_);
      executor_->run(kRefresh);  // moves scales by what the pass recorded
    }
  } catch (const Interrupted&) {
    forget_scales();
    executor_->run(kRefresh);  // weights have theirs before a first pass
    if (cut) place(*given_);
    throw;
  }
  if (cut) place(*given_);  // behind the passes, since copies keep the order of the work
  given_.reset();
  clock_.restart();
  calibrated_ = true;
  return !cut;
}

std::vector<Tensor> Engine::state() {
  REDLINE_CHECK(!averaged_, "the state was asked for while the average stood in the weights' place");
  finish_update();
  std::vector<Tensor> arrays;
  for (const ValueId value : lowered_.state_values) arrays.push_back(executor_->tensor(value));
  return arrays;
}

bool Engine::on_host(ValueId value) const {
  return device_.shares_host_memory() || lowered_.set.at(value).memory == program::Memory::host;
}

void Engine::take_snapshot() {
  REDLINE_CHECK(has_snapshot(), "no copy of the state was planned");
  run(kSnapshot);
  copying_ = true;
}

bool Engine::changes_saved_rows(std::string_view program) const { return changing_.contains(program); }

void Engine::keep_snapshot() {
  if (std::exchange(copying_, false)) run(kAfterSnapshot);
}

void Engine::wait_for_snapshot() {
  if (!lowered_.snapshot.empty()) executor_->wait(kSnapshot);
}

void Engine::refresh() {
  if (options_.refreshes()) return run(kRefresh);
  whole_ = !updates_by_parts();
}

bool Engine::updates_by_parts() const {
  return options_.training && !options_.sharing.alone() && options_.sharing.mode == dist::Mode::zero1;
}

void Engine::run(std::string_view program, const Look& look) {
  const Rule* const rule = std::ranges::find(kRules, program, &Rule::program);
  REDLINE_CHECK(rule != std::end(kRules), "no rule for the program {}", program);
  REDLINE_CHECK(!averaged_ || rule->takes_average, "{} while the average stands in the weights' place", program);
  if (!rule->late) finish_update();
  if (rule->scales && !calibrated_) calibrate();
  if (rule->whole) gather_weights();
  if (changes_saved_rows(program)) keep_snapshot();
  const StopFlag* const stop = rule->stops ? stop_ : nullptr;
  if (look.timed) clock_.begin();
  if (look.watch)
    executor_->run_watched(program, look.watch, stop);
  else
    executor_->run(program, look.timer, stop);
  if (look.timed) clock_.end();
  const bool some = program == kFirst && !lowered_.first_gathers_all;  // whole weights are for evaluation alone then
  if (rule->leaves != Rule::Leaves::as_they_were && !some)
    whole_ = rule->leaves == Rule::Leaves::whole || !updates_by_parts();
}

void Engine::gather_weights() {
  if (!whole_) run(kGather);
}

void Engine::upload(const data::Batch& batch) {
  REDLINE_CHECK(batch.shape == options_.batch, "a batch of another shape");
  if (calibrated_)
    given_.reset();
  else
    given_ = batch;
  place(batch);
}

void Engine::place(const data::Batch& batch) {
  const data::TokenCounts own = counts_here(batch);
  const auto write = [&](ValueId value, const std::vector<std::int32_t>& all) {
    executor_->write(value, all.data() + own.first, own.tokens * static_cast<std::int64_t>(sizeof all[0]));
  };
  write(lowered_.batch.tokens, batch.tokens);
  write(lowered_.batch.targets, batch.targets);
  write(lowered_.batch.positions, batch.positions);
  executor_->write(lowered_.batch.doc_offsets, batch.doc_offsets);
  executor_->expect(batch.full_rows() ? ops::Documents::full_rows : ops::Documents::packed);
}

void Engine::set_step(std::uint64_t step, double lr, const StepCounts& counts, std::uint64_t first_token,
                      double average) {
  const double t = static_cast<double>(step) + 1;
  const config::Optim& o = options_.optim;
  const StepState state{.seed = options_.seed,
                        .step = step,
                        .first_token = first_token,
                        .counts = counts,
                        .lr = static_cast<float>(lr),
                        .correction1 = static_cast<float>(1 - std::pow(o.beta1, t)),
                        .correction2 = static_cast<float>(1 - std::pow(o.beta2, t)),
                        .weight_decay_share = o.weight_decay_falls && o.lr > 0 ? static_cast<float>(lr / o.lr) : 1.0f,
                        .average = static_cast<float>(average),
                        .momentum = static_cast<float>(optim::muon_momentum(o, static_cast<std::int64_t>(step)))};
  executor_->write(lowered_.step_state, &state, sizeof state);
  executor_->at_step(step);
}

void Engine::micro_step(bool first, bool last, program::NodeTimer* timer, const program::NodeWatch& watch) {
  const bool adds_up = last && options_.sharing.apart() > 1;
  const std::string_view begins = adds_up && options_.single ? kOnly : kFirst;
  const Look look{.timer = timer, .watch = watch, .timed = true};
  // What is looked at node by node is the step alone.
  if (first && !timer && !watch && late_) {
    if (stop_ && *stop_ != 0) finish_update();  // of a step that is done: only the one that begins is dropped
    end_if_asked(stop_);
    late_ = false;
    return run(kUpdateAndFirst, look);
  }
  run(first ? begins : adds_up ? kLast : kAccumulate, look);
}

void Engine::update(program::NodeTimer* timer) {
  const bool late = lowered_.late_state.present() && !timer;
  run(late ? kNorm : kUpdate, {.timer = timer, .timed = true});
  late_ = late;
}

void Engine::finish_update() {
  if (std::exchange(late_, false)) run(kFinish);
}

void Engine::update_with_norms() { run(kUpdateWithNorms, {.timed = true}); }

void Engine::small_gradient(std::uint64_t step, double pairs) {
  set_step(step, 0, pairs, 0);
  run(kSmallGradient);
}

NormSums Engine::norm_sums() {
  const auto read = [&](ValueId id) {
    std::vector<double> sums(lowered_.table.size());
    executor_->read(id, sums);
    return sums;
  };
  const NormValues& values = lowered_.norms;
  NormSums all{read(values.gradients), read(values.weights), {}};
  if (values.has_updates) all.updates = read(values.updates);
  executor_->read(values.small, &all.small, sizeof all.small);
  return all;
}

Engine::ShownAverage::ShownAverage(Engine& engine) : engine_(engine) {
  engine_.run(kShowAverage);
  engine_.averaged_ = true;
}

Engine::ShownAverage::~ShownAverage() {
  try {
    engine_.run(kShowWeights);
    engine_.averaged_ = false;
  } catch (const std::exception& e) {  // the engine refuses all work and every save from here on
    log::warn("the weights did not come back to their place: {}", e.what());
  }
}

bool Engine::parameters_finite() {
  run(kCheck);
  std::vector<UpdateResult> results(static_cast<std::size_t>(lowered_.set.at(lowered_.check_result).shape[0]));
  executor_->read(lowered_.check_result, results);
  return std::ranges::all_of(results, [](const UpdateResult& r) { return r.finite == 1.0f; });
}

// Where `batch` has full rows, the other kind is the same rows with the last one a token shorter, as a run of full rows
// meets it at the end of an epoch; otherwise its tokens fill the rows.
void Engine::rehearse(const data::Batch& batch, double most) {
  const data::BatchShape& shape = batch.shape;
  data::Batch other(shape);
  const auto row = static_cast<std::size_t>(shape.seq_len), last = static_cast<std::size_t>(shape.rows) - 1;
  for (std::size_t i = 0; i <= last; ++i) {
    const std::size_t length = row - (i == last && row > 1 && batch.full_rows() ? 1 : 0);
    other.append(std::span(batch.tokens).subspan(i * row, length));
  }
  const bool all = model_flops_palm(batch) <= most || !options_.sharing.alone();  // ranks rehearse alike
  for (const data::Batch* b : {&batch, &std::as_const(other)}) {
    upload(*b);
    set_step(0, 0, 0, 0);
    const bool finds = !calibrated_ && options_.sharing.alone();
    const bool ran = finds && calibrate();  // not with documents cut: full rows have a program of their own
    if (!ran && (all || !finds)) micro_step(true, !options_.accumulate);
    if (!all) break;
    if (!options_.accumulate) continue;
    micro_step(false, false);
    if (options_.sharing.alone()) continue;
    micro_step(false, true);
    if (options_.single) micro_step(true, true);
  }
  forget_records();
  device_.wait();
  clock_.restart();
}

double Engine::evaluate() {
  run(kEvaluate);
  return loss_sum();
}

std::vector<float> Engine::logits() {
  run(kLogits);
  std::vector<float> out(static_cast<std::size_t>(lowered_.set.at(lowered_.logits).shape.elements()));
  executor_->read(lowered_.logits, out);
  return out;
}

void Engine::continue_texts(std::string_view program) {
  REDLINE_CHECK(whole_, "{} without gather_weights() on all ranks", program);
  run(program);
}

double Engine::loss_sum() {
  double sum = 0;
  executor_->read(lowered_.loss_sum, &sum, sizeof sum);
  return sum;
}

std::vector<double> Engine::router_totals() {
  std::vector<double> totals(static_cast<std::size_t>(lowered_.set.at(lowered_.router_totals).shape.elements()));
  executor_->read(lowered_.router_totals, totals);
  return totals;
}

void Engine::post_result() {
  REDLINE_CHECK(posted_ - taken_ < kResults.size(), "{} results are under way", posted_ - taken_);
  run(kResults[posted_++ % kResults.size()], {.timed = true});
  clock_.finish();
}

// The program of results is the last of its step: they are there when the step has ended.
Engine::StepResult Engine::take_result() {
  REDLINE_CHECK(taken_ < posted_, "no result is under way");
  const ResultValues& values = lowered_.results[taken_++ % kResults.size()];
  StepResult result;
  result.time = clock_.take();
  std::memcpy(&result.loss_sum, executor_->tensor(values.loss_sum).data, sizeof result.loss_sum);
  std::memcpy(&result.update, executor_->tensor(values.update).data, sizeof result.update);
  if (values.router.present()) {
    const Tensor totals = executor_->tensor(values.router);
    result.router.assign(totals.as<double>(), totals.as<double>() + totals.elements());
  }
  return result;
}

double Engine::model_flops(const data::Batch& batch) const {
  const double fill = static_cast<double>(batch.real_tokens) / static_cast<double>(batch.shape.tokens());
  return flops_(fill, [&](std::int64_t window) { return batch.pairs_within(window); });
}

double Engine::model_flops_palm(const data::Batch& batch) const {
  const double tokens = static_cast<double>(batch.real_tokens);
  const std::int64_t row = batch.shape.seq_len;
  return flops_(tokens / static_cast<double>(batch.shape.tokens()), [&](std::int64_t window) {
    return tokens * static_cast<double>(window == kNoWindow ? row : std::min(window, row));
  });
}

}  // namespace redline::model
