// Runs training steps under a timer and adds up its times.
#include "perf/profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "perf/measure.h"
#include "program/program.h"
#include "train/memory_advice.h"

namespace redline::perf {
namespace {

// Sums by node; a node is known by its address in its program.
class Recorder final : public StepTimer {
 public:
  Recorder(Profile& profile, const ProfileOptions& roofline, double start)
      : profile_(profile), roofline_(roofline), start_(start) {}

  void micro_batch(std::int64_t step, double score_pairs) override {
    step_ = step;
    score_pairs_ = score_pairs;
  }

  void node(const program::Node& node, double begin, double end) override {
    const auto [it, is_new] = index_.try_emplace(&node, static_cast<std::int32_t>(profile_.nodes.size()));
    if (is_new) {
      TimedWork& work = profile_.nodes.emplace_back();
      work.name = node.full_name();
      work.op = program::name_of(node.op);
      work.phase = program::name_of(node.phase);
    }
    TimedWork& work = profile_.nodes[static_cast<std::size_t>(it->second)];
    work.calls += 1;
    work.ms += 1e3 * (end - begin);
    work.flops += node.cost.flops + node.cost.flops_per_pair * score_pairs_;
    work.bytes += node.cost.bytes;
    const double products = roofline_.peak_flops > 0
                                ? (node.cost.flops + node.cost.flops_per_pair * score_pairs_) / roofline_.peak_flops
                                : 0;
    const double moving = roofline_.copy_rate > 0 ? node.cost.bytes / roofline_.copy_rate : 0;
    work.floor_ms += 1e3 * std::max(products, moving);
    profile_.spans.push_back({it->second, step_, begin - start_, end - start_});
  }

 private:
  Profile& profile_;
  const ProfileOptions& roofline_;
  double start_;
  std::int64_t step_ = 0;
  double score_pairs_ = 0;
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

Profile profile(const ProfileOptions& options, device::Device& device) {
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
    if (i == options.warmup) recorder.emplace(p, options, steady_seconds());
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
