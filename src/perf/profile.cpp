// The engine, a loader and the clock around them; and the sums of what a timer saw of every node.
#include "perf/profile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "config/load.h"
#include "data/from_config.h"
#include "optim/schedule.h"
#include "perf/fit.h"
#include "program/executor.h"
#include "program/program.h"
#include "train/ends.h"
#include "train/memory_advice.h"
#include "train/trainer.h"

namespace redline::perf {
namespace {

// Documents of very different lengths: the mean of so many rows is within a few percent of all.
constexpr std::int64_t kCountedRows = 1024, kCountedTokens = 4 << 20;

// The choices for the device, made before the engine that they are made for.
model::LoweringOptions prepared(const config::Config& c, device::Device& device, const train::Team* team) {
  program::tune_products(device, c.kernels.tuning);
  model::LoweringOptions options = model::lowering_options(c, device.kind());
  if (!team || team->alone()) return options;
  options.sharing =
      dist::sharing_of(c.parallel, team->sharing.rank, team->sharing.ranks, dist::mode_named(c.parallel.mode));
  options.execution.group = team->group;
  return options;
}

data::LoaderOptions loader_of(const config::Config& c, const model::LoweringOptions& lowering, device::Kind kind) {
  data::LoaderOptions options = data::loader_options(c.data, lowering.batch, kind == device::Kind::cpu);
  options.rank = lowering.sharing.group();
  options.ranks = lowering.sharing.groups();
  return options;
}

std::unique_ptr<data::Corpus> source(const config::Config& c) {
  config::require_data(c);
  auto opened = data::open_training_corpus(data::corpus_options(c));
  data::require_vocabulary(*opened, c.model.vocab);
  return opened;
}

// Sums by node; a node is known by its address in its program.
class Recorder final : public StepTimer {
 public:
  Recorder(Profile& profile, const ProfileOptions& roofline, const program::ProgramSet& set, double start)
      : profile_(profile), roofline_(roofline), set_(set), start_(start) {
    for (const program::Value& value : set.values)
      narrow_ = narrow_ || value.role == program::Role::working ||
                (value.role == program::Role::parameter && value.dtype == DType::bf16);
  }

  void micro_batch(std::int64_t step, const data::Batch& batch) override {
    step_ = step;
    batch_ = &batch;
  }

  void node(const program::Node& node, double begin, double end) override {
    const auto [it, is_new] = index_.try_emplace(&node, static_cast<std::int32_t>(profile_.nodes.size()));
    if (is_new) {
      TimedWork& work = profile_.nodes.emplace_back();
      work.name = node.full_name();
      work.op = program::name_of(node.op);
      work.phase = program::name_of(node.phase);
      work.types = types_of(node, set_);
      if (const std::optional<DType> type = product_type(node, set_)) {
        ++profile_.products[std::string(name_of(*type))];
        const bool of_weights = node.phase != program::Phase::update;  // Muon's are of moments
        if (narrow_ && of_weights && *type == DType::f32) profile_.upcast.push_back(work.name);
      }
    }
    TimedWork& work = profile_.nodes[static_cast<std::size_t>(it->second)];
    work.calls += 1;
    work.ms += 1e3 * (end - begin);
    double flops = node.cost.flops;
    if (node.cost.flops_per_pair > 0) flops += node.cost.flops_per_pair * batch_->pairs_within(node.cost.window);
    work.flops += flops;
    work.bytes += node.cost.bytes;
    const double products = roofline_.peak_flops > 0 ? flops / roofline_.peak_flops : 0;
    const double moving = roofline_.copy_rate > 0 ? node.cost.bytes / roofline_.copy_rate : 0;
    work.floor_ms += 1e3 * std::max(products, moving);
    profile_.spans.push_back({it->second, step_, begin - start_, end - start_});
  }

 private:
  Profile& profile_;
  const ProfileOptions& roofline_;
  const program::ProgramSet& set_;
  double start_;
  bool narrow_ = false;  // weights have a copy for products
  std::int64_t step_ = 0;
  const data::Batch* batch_ = nullptr;
  std::map<const program::Node*, std::int32_t> index_;
};

// Sums of all steps to means of one.
void finish(Profile& p) {
  const double per_step = 1.0 / static_cast<double>(p.steps);
  for (double* sum : {&p.tokens, &p.step_ms, &p.data_ms, &p.model_flops}) *sum *= per_step;
  std::map<std::string, TimedWork> kinds;
  for (TimedWork& node : p.nodes) {
    for (double* sum : {&node.calls, &node.ms, &node.flops, &node.bytes, &node.floor_ms}) *sum *= per_step;
    node.share = node.ms / p.step_ms;
    p.nodes_ms += node.ms;
    TimedWork& kind = kinds[node.op];
    kind.name = kind.op = node.op;
    if (kind.types.find(node.types) == kind.types.npos) kind.types += (kind.types.empty() ? "" : " ") + node.types;
    kind.calls += node.calls;
    kind.ms += node.ms;
    kind.share += node.share;
    kind.flops += node.flops;
    kind.bytes += node.bytes;
    kind.floor_ms += node.floor_ms;
  }
  for (auto& [op, kind] : kinds) p.kinds.push_back(std::move(kind));
  std::ranges::sort(p.kinds, [](const TimedWork& a, const TimedWork& b) { return a.ms > b.ms; });
  p.outside_ms = p.step_ms - p.nodes_ms - p.data_ms;
}

}  // namespace

Steps::Steps(const config::Config& c, device::Device& device, const StopFlag* stop, const train::Team* team)
    : config_(c),
      lowering_(prepared(c, device, team)),
      stop_(stop),
      loader_(source(c), loader_of(c, lowering_, device.kind())),
      engine_(c.model, lowering_, device),
      batch_(lowering_.batch) {
  engine_.initialise(lowering_.seed);
  engine_.drop_on(stop);
}

StepTimes Steps::step(std::int64_t index, std::int64_t micro_batches, StepTimer* timer) {
  const double begin = steady_seconds();
  StepTimes times = queue(index, micro_batches, timer);
  take();
  times.seconds = steady_seconds() - begin;
  return times;
}

StepTimes Steps::queue(std::int64_t index, std::int64_t micro_batches, StepTimer* timer) {
  const double lr = optim::learning_rate(config_, index, train::total_steps(config_.train), 1);
  const auto step = static_cast<std::uint64_t>(index);
  std::int64_t pairs = 0;
  StepTimes times;
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    const double wait = steady_seconds();
    read_batch();
    times.waited += steady_seconds() - wait;
    count_batch();
    engine_.upload(batch_);
    engine_.set_step(step, lr, 0, static_cast<std::uint64_t>(micro * batch_.shape.tokens()));
    if (timer) timer->micro_batch(index, batch_);
    engine_.micro_step(micro == 0, micro + 1 == micro_batches, timer);
    pairs += engine_.counts_here(batch_).pairs;
    times.model_flops += engine_.model_flops(batch_);
  }
  engine_.set_step(step, lr, static_cast<double>(std::max<std::int64_t>(pairs, 1)), 0);
  engine_.update(timer);
  engine_.post_result();
  times.tokens = static_cast<double>(pairs);
  return times;
}

void Steps::read_batch() {
  if (!loader_.next(batch_)) fail_user("data.train has no documents to train on");
}

bool Steps::counted() const {
  return summed_ * batch_.shape.rows >= kCountedRows || summed_ * batch_.shape.tokens() >= kCountedTokens;
}

void Steps::count_batch() {
  if (counted()) return;
  sums_.tokens += static_cast<double>(batch_.pairs) / lowering_.sharing.sequence;
  sums_.model_flops += engine_.model_flops(batch_);
  ++summed_;
}

Work Steps::work() {
  while (!counted()) {
    end_if_asked(stop_);
    read_batch();
    count_batch();
  }
  const auto n = static_cast<double>(summed_);
  return {sums_.tokens / n, sums_.model_flops / n};
}

std::string types_of(const program::Node& node, const program::ProgramSet& set) {
  using program::Role;
  std::vector<std::string_view> read, written;
  const auto add = [](std::vector<std::string_view>& to, DType type) {
    if (std::ranges::find(to, name_of(type)) == to.end()) to.push_back(name_of(type));
  };
  program::each_operand(node.op, [&](std::string_view, program::ValueId id, Access access) {
    const program::Value& value = set.at(id);
    const Role role = value.role;
    if (role == Role::scratch || role == Role::scale || role == Role::record || role == Role::input ||
        role == Role::constant || role == Role::output)
      return;
    if (access != Access::write) add(read, value.dtype);
    if (access != Access::read) add(written, value.dtype);
  });
  return fmt::format("{}>{}", fmt::join(read, "+"), fmt::join(written, "+"));
}

std::optional<DType> product_type(const program::Node& node, const program::ProgramSet& set) {
  if (node.cost.flops == 0 && node.cost.flops_per_pair == 0) return {};
  std::optional<DType> type;
  program::each_operand(node.op, [&](std::string_view, program::ValueId id, Access access) {
    if (!type && access == Access::read) type = set.at(id).dtype;
  });
  return type;
}

Profile profile(const ProfileOptions& asked, device::Device& device) {
  ProfileOptions options = asked;
  place_to_fit(options.config, device, room_on(options.config, device, 1));
  Profile p;
  p.device = device.name();
  p.steps = options.steps;
  train::require_memory(options.config, train::memory_needed(options.config, device.kind()), device);
  Steps steps(options.config, device);
  const std::int64_t timed = options.warmup + options.steps;
  const std::int64_t all = timed + (device.runs_ahead() ? 1 + options.steps : 0);
  std::optional<Recorder> recorder;
  double begin = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    if (i == options.warmup) recorder.emplace(p, options, steps.programs(), steady_seconds());
    if (i == timed + 1) begin = steady_seconds();  // one step to settle
    const bool record = recorder && i < timed;
    const StepTimes t = steps.step(i, options.config.train.accumulate, record ? &*recorder : nullptr);
    if (record) {
      p.step_ms += 1e3 * t.seconds;
      p.data_ms += 1e3 * t.waited;
      p.tokens += t.tokens;
      p.model_flops += t.model_flops;
    }
    if (options.progress) options.progress(i + 1, all);
  }
  if (all > timed) p.untimed_ms = 1e3 * (steady_seconds() - begin) / static_cast<double>(options.steps);
  finish(p);
  return p;
}

StepParts parts_of(const Profile& profile) {
  StepParts parts;
  for (const TimedWork& node : profile.nodes) add_timed(parts, {node.op, node.phase, node.ms, node.floor_ms});
  return parts;
}

// Complete events ("X"), times in microseconds.
std::string chrome_trace(const Profile& profile) {
  using Json = nlohmann::ordered_json;
  constexpr int kProcess = 1, kThread = 1;
  Json events = Json::array();
  const auto name = [&](const char* what, const std::string& value) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", kThread}, {"args", {{"name", value}}}});
  };
  name("process_name", "redline");
  name("thread_name", profile.device);
  for (const Span& span : profile.spans) {
    const TimedWork& node = profile.nodes[static_cast<std::size_t>(span.node)];
    events.push_back({{"name", node.name},
                      {"cat", node.op},
                      {"ph", "X"},
                      {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)},
                      {"pid", kProcess},
                      {"tid", kThread},
                      {"args", {{"step", span.step}, {"phase", node.phase}}}});
  }
  return Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(-1, ' ', false,
                                                                                  Json::error_handler_t::replace) +
         "\n";
}

}  // namespace redline::perf
