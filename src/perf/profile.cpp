// Runs training steps under a timer and adds up what it was told.
#include "perf/profile.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "data/loader.h"
#include "model/engine.h"
#include "optim/schedule.h"
#include "train/trainer.h"

namespace redline::perf {
namespace {

// Sums by node; a node is known by its address in its program.
class Recorder final : public program::NodeTimer {
 public:
  Recorder(Profile& profile, const ProfileOptions& roofline, double start)
      : profile_(profile), roofline_(roofline), start_(start) {}

  void begin(std::int64_t step, double score_pairs) {
    step_ = step;
    score_pairs_ = score_pairs;
  }

  void node(const program::Node& node, double begin, double end) override {
    const auto [it, is_new] = index_.try_emplace(&node, static_cast<std::int32_t>(profile_.nodes.size()));
    if (is_new) {
      TimedWork& work = profile_.nodes.emplace_back();
      work.name = node.name;
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

// Training steps as the trainer makes them, without its metrics and checkpoints.
class Steps {
 public:
  Steps(const config::Config& c, device::Device& device)
      : config_(c),
        lowering_(model::lowering_options(c, device.kind())),
        loader_(source(c), data::loader_options(c.data, lowering_.batch, device.kind() == device::Kind::cpu)),
        engine_(c.model, lowering_, device),
        batch_(lowering_.batch) {
    engine_.initialise(lowering_.seed);
  }

  // With a recorder the step is added to its profile.
  void step(std::int64_t index, Profile& p, Recorder* recorder) {
    const double lr = optim::learning_rate(config_.optim, index, train::total_steps(config_.train));
    const auto step = static_cast<std::uint64_t>(index);
    std::int64_t pairs = 0;
    double waited = 0, flops = 0;
    const double begin = steady_seconds();
    for (std::int64_t micro = 0; micro < config_.train.accumulate; ++micro) {
      const double wait = steady_seconds();
      if (!loader_.next(batch_)) fail_user("data.train has no documents to train on");
      waited += steady_seconds() - wait;
      engine_.upload(batch_);
      engine_.set_step(step, lr, 0, static_cast<std::uint64_t>(micro * batch_.shape.tokens()));
      if (recorder) recorder->begin(index, static_cast<double>(batch_.score_pairs));
      engine_.micro_step(micro == 0, recorder);
      pairs += batch_.pairs;
      flops += engine_.model_flops(batch_);
    }
    engine_.set_step(step, lr, 1.0 / static_cast<double>(std::max<std::int64_t>(pairs, 1)), 0);
    engine_.update(recorder);
    engine_.post_result();
    engine_.take_result();
    if (!recorder) return;
    p.step_ms += 1e3 * (steady_seconds() - begin);
    p.data_ms += 1e3 * waited;
    p.tokens += static_cast<double>(pairs);
    p.model_flops += flops;
  }

 private:
  static std::unique_ptr<data::Corpus> source(const config::Config& c) {
    auto opened = data::open_training_source(c.data);
    data::require_vocabulary(*opened, c.model.vocab);
    return opened;
  }

  const config::Config& config_;
  model::LoweringOptions lowering_;
  data::Loader loader_;
  model::Engine engine_;
  data::Batch batch_;
};

}  // namespace

Profile profile(const ProfileOptions& options, device::Device& device) {
  Profile p;
  p.device = device.name();
  p.steps = options.steps;
  Steps steps(options.config, device);
  const std::int64_t timed = options.warmup + options.steps;
  const std::int64_t all = timed + (device.runs_ahead() ? 1 + options.steps : 0);
  std::optional<Recorder> recorder;
  double begin = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    if (i == options.warmup) recorder.emplace(p, options, steady_seconds());
    if (i == timed + 1) begin = steady_seconds();  // one step to settle
    steps.step(i, p, recorder && i < timed ? &*recorder : nullptr);
    if (options.progress) options.progress(i + 1, all);
  }
  if (all > timed) p.untimed_ms = 1e3 * (steady_seconds() - begin) / static_cast<double>(options.steps);
  finish(p);
  return p;
}

}  // namespace redline::perf
