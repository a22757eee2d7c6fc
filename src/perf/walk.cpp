// The clocks, and what is read off them: the time of a step, the collectives in it, a picture.
#include "perf/walk.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <ranges>

#include "base/error.h"
#include "io/json.h"
#include "model/lowering.h"
#include "program/program.h"

namespace redline::perf {
namespace {

using program::Lane;
using program::When;

Clock clock_of(const program::Node& node) {
  if (program::is_collective(node.op)) return Clock::network;
  if (node.when == When::now || node.lane == Lane::side) return Clock::compute;
  return node.lane == Lane::to_host ? Clock::to_host : Clock::to_device;
}

// What a collective of a program is of, in words.
std::string_view sent_of(const program::Node& node, Collective collective) {
  if (collective == Collective::gather_shards && node.name != "gather sums")
    return node.phase == program::Phase::forward ? "weights" : "weights, backward pass";
  if (collective == Collective::all_to_all)
    return node.phase == program::Phase::forward ? "heads" : "heads, backward pass";
  if (node.phase == program::Phase::backward) return "gradients";
  const auto* const totals = std::get_if<dist::AllReduce<program::ValueId>>(&node.op);
  return totals && totals->largest ? "records" : "totals";
}

double seconds_of(const Sent& sent, const Fabric& fabric, int ranks) {
  if (sent.apart > 1)
    return collective_seconds(fabric.every(sent.apart), sent.collective, sent.bytes, ranks / sent.apart);
  return collective_seconds(fabric, sent.collective, sent.bytes, sent.among > 0 ? sent.among : ranks);
}

// Copies each way, which begin one after another in their own direction and slow those of the other one.
class CopyClocks {
 public:
  CopyClocks(std::vector<ClockSpan>& spans, double share) : spans_(spans), share_(share) {}

  void start(Clock clock, const program::Node& node, double seconds) {
    spans_.push_back({clock, &node, now_, now_});
    of(clock).push_back({spans_.size() - 1, seconds});
  }
  // Returns the seconds in which both were busy.
  double run_until(double time) {
    double both = 0;
    while (now_ < time && busy()) both += go_on(time);
    if (std::isfinite(time)) now_ = std::max(now_, time);
    return both;
  }
  double finish(std::int32_t pair) {  // when it ends
    while (!ends_.contains(pair)) {
      REDLINE_CHECK(busy(), "a copy is waited for that was not started");
      go_on(std::numeric_limits<double>::infinity());
    }
    return ends_.at(pair);
  }
  void finish_all() { run_until(std::numeric_limits<double>::infinity()); }

 private:
  struct Copy {
    std::size_t span;
    double left;  // seconds alone
    bool begun = false;
  };
  std::deque<Copy>& of(Clock clock) { return queues_[clock == Clock::to_host ? 0 : 1]; }
  bool busy() const { return !queues_[0].empty() || !queues_[1].empty(); }

  // Up to the next end of a copy, or to that time.
  double go_on(double time) {
    const bool both = !queues_[0].empty() && !queues_[1].empty();
    const double rate = both ? share_ : 1;
    double seconds = time - now_;
    for (const std::deque<Copy>& queue : queues_)
      if (!queue.empty()) seconds = std::min(seconds, queue.front().left / rate);
    for (std::deque<Copy>& queue : queues_) {
      if (queue.empty()) continue;
      Copy& copy = queue.front();
      if (!std::exchange(copy.begun, true)) spans_[copy.span].begin = now_;
      constexpr double kNothing = 1e-12;
      copy.left -= seconds * rate;
      if (copy.left > kNothing) continue;
      spans_[copy.span].end = now_ + seconds;
      ends_[spans_[copy.span].node->pair] = now_ + seconds;
      queue.pop_front();
    }
    now_ += seconds;
    return both ? seconds : 0;
  }

  std::vector<ClockSpan>& spans_;
  double share_, now_ = 0;
  std::array<std::deque<Copy>, 2> queues_;
  std::map<std::int32_t, double> ends_;  // by pair
};

// The programs that were lowered last for one rank. They are the same on every card, and whoever plans for many cards,
// or solves a fit that was solved, asks for the same ones again.
class LastLowered {
 public:
  static LastLowered& all() {
    static LastLowered last;
    return last;
  }
  std::shared_ptr<const model::LoweredModel> find(const config::Config& config, device::Kind kind) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(last_, [&](const Run& r) { return r.kind == kind && r.config == config; });
    if (found == last_.end()) return nullptr;
    last_.splice(last_.begin(), last_, found);
    return found->lowered;
  }
  void add(const config::Config& config, device::Kind kind, std::shared_ptr<const model::LoweredModel> lowered) {
    std::size_t items = lowered->set.values.size();
    for (const program::Program& program : lowered->set.programs) items += program.nodes.size();
    const std::lock_guard lock(mutex_);
    last_.push_front({config, kind, std::move(lowered), items});
    items_ += items;
    while (last_.size() > kMost || (items_ > kMostItems && last_.size() > 1)) {
      // Which layers are computed again differs from card to card; what lies on the host is asked for on each.
      const auto is_again = [](const Run& r) { return !r.config.memory.placement.recompute.empty(); };
      const auto newest = std::prev(last_.rend());
      const auto oldest = std::find_if(last_.rbegin(), newest, is_again);
      const auto out = oldest == newest ? std::prev(last_.end()) : std::prev(oldest.base());
      items_ -= out->items;
      last_.erase(out);
    }
  }

 private:
  // An item takes some 300 bytes. A step of 8B with its state on the host has 110,000 of them, one of 405B 5 million.
  static constexpr std::size_t kMost = 32, kMostItems = 6 << 20;
  struct Run {
    config::Config config;
    device::Kind kind;
    std::shared_ptr<const model::LoweredModel> lowered;
    std::size_t items;  // values, and nodes of all programs
  };
  std::mutex mutex_;
  std::list<Run> last_;
  std::size_t items_ = 0;
};

}  // namespace

double expected_slowest(int ranks) {
  if (ranks == 1) return 0;
  // The integral of x over the density of the largest, n phi(x) Phi(x)^(n-1); steps of a tenth give it to 14 digits.
  constexpr int kSteps = 90;
  constexpr double kWidth = 0.1, kRoot = 2.5066282746310002;  // of 2 pi
  double sum = 0;
  for (int i = -kSteps; i <= kSteps; ++i) {
    const double x = i * kWidth, below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    sum += x * ranks * std::exp(-x * x / 2) / kRoot * std::pow(below, ranks - 1) * kWidth;
  }
  return sum;
}

Timeline walk(const program::Program& program, std::span<const double> seconds, const BothWays& both_ways,
              bool beside_compute) {
  Timeline line;
  double now = 0, network_until = 0;
  CopyClocks copies(line.spans, both_ways.share);
  std::map<std::int32_t, double> ends;  // of collectives under way, by pair
  const auto wait = [&](const program::Node& node, double end) {
    if (end <= now) return;
    line.spans.push_back({Clock::compute, &node, now, end, true});
    now = end;
  };
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const program::Node& node = program.nodes[i];
    const Clock clock = clock_of(node);
    if (clock == Clock::compute) {
      const double end = now + seconds[i];
      line.spans.push_back({clock, &node, now, end + both_ways.slows * copies.run_until(end)});
      now = line.spans.back().end;
    } else if (node.when == When::wait) {
      wait(node, clock == Clock::network ? ends.at(node.pair) : copies.finish(node.pair));
    } else if (clock == Clock::network) {
      const double begin = std::max(now, network_until);
      network_until = begin + seconds[i];
      line.spans.push_back({clock, &node, begin, network_until});
      if (node.when == When::now || !beside_compute) wait(node, network_until);
      if (node.when == When::start) ends[node.pair] = network_until;
    } else {
      copies.run_until(now);
      copies.start(clock, node, seconds[i]);
    }
  }
  line.end = now;
  copies.finish_all();
  return line;
}

double expected_seconds(const program::ProgramSet& set, std::string_view name, double rows, double seq_len,
                        const Machine& machine) {
  const program::Program& program = set.find(name);
  return walk(program, node_seconds(set, program, rows, seq_len, machine), machine.both_ways).end;
}

double RankStep::bytes_sent() const {
  double sent = 0;
  for (const CollectiveUse& u : collectives) sent += (u.collective == Collective::all_reduce ? 2 : 1) * u.bytes;
  return sent;
}

// A program of the step, and how often it runs.
struct StepWalk::Timed {
  const program::ProgramSet* set = nullptr;
  const program::Program* program = nullptr;
  std::int64_t times = 1;
  std::vector<double> seconds;  // of each node
};

StepWalk::StepWalk(const config::Config& config, const Machine& machine, const Spread& spread, const Filling& filling)
    : spread_(spread), both_ways_(machine.both_ways) {
  options_ = std::make_unique<model::LoweringOptions>(model::lowering_options(config, machine.kind));
  const auto lower = [&] { return std::make_shared<model::LoweredModel>(model::lower(config.model, *options_)); };
  if (!spread.alone()) {
    options_->sharing = dist::sharing_of(config.parallel, 0, spread.ranks, spread.mode);
    const model::LargestRanks largest = model::largest_ranks(config.model, *options_);
    if (spread.mode != Mode::ddp && largest.by_update != largest.by_memory) {
      options_->sharing.rank = largest.by_update;
      slowest_ = lower();
    }
    options_->sharing.rank = largest.by_memory;
  }
  if (spread.alone()) lowered_ = LastLowered::all().find(config, machine.kind);
  if (!lowered_) {
    lowered_ = lower();
    if (spread.alone()) LastLowered::all().add(config, machine.kind, lowered_);
  }
  const Documents documents = documents_of(options_->batch.rows, options_->batch.seq_len, filling);
  for (const model::StepProgram& run : model::programs_of_step(*options_, config.train.accumulate)) {
    const program::ProgramSet& set = slowest_ && run.name == model::kUpdate ? slowest_->set : lowered_->set;
    Timed timed{.set = &set, .program = &set.find(run.name), .times = run.times, .seconds = {}};
    timed.seconds = node_seconds(set, *timed.program, documents.count, documents.length, machine);
    for (std::size_t i = 0; i < timed.seconds.size(); ++i)
      if (const std::optional<Sent> sent = sent_by(timed.program->nodes[i], set))
        timed.seconds[i] = spread.fabric ? seconds_of(*sent, *spread.fabric, spread.ranks) : 0;
    timed_.push_back(std::move(timed));
  }
}

StepWalk::~StepWalk() = default;

std::vector<StepWalk::Run> StepWalk::runs(double slower) const {
  std::vector<Run> runs;
  for (const Timed& timed : timed_) {
    std::vector<double> seconds = timed.seconds;
    for (std::size_t i = 0; i < seconds.size(); ++i)
      if (clock_of(timed.program->nodes[i]) == Clock::compute) seconds[i] *= slower;
    runs.push_back({timed.program->name, timed.times,
                    walk(*timed.program, seconds, both_ways_, !spread_.fabric || spread_.fabric->beside_compute)});
  }
  return runs;
}

RankStep StepWalk::times(double slower) const {
  RankStep step;
  const auto use_of = [&](const program::Node& node, const Sent& sent) -> CollectiveUse& {
    const std::string_view of = sent_of(node, sent.collective);
    const auto known = std::ranges::find_if(
        step.collectives, [&](const CollectiveUse& u) { return u.collective == sent.collective && u.of == of; });
    if (known != step.collectives.end()) return *known;
    return step.collectives.emplace_back(CollectiveUse{.collective = sent.collective, .of = of});
  };
  const std::vector<Run> all = runs(slower);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Run& run = all[i];
    const auto times = static_cast<double>(run.times);
    for (const ClockSpan& span : run.timeline.spans) {
      const std::optional<Sent> sent = sent_by(*span.node, *timed_[i].set);
      const double seconds = times * span.seconds();
      if (span.clock == Clock::compute) (!span.waits ? step.compute : sent ? step.exposed : step.copying) += seconds;
      if (!sent) continue;
      CollectiveUse& use = use_of(*span.node, *sent);
      (span.waits ? use.exposed : use.seconds) += seconds;
      if (span.waits) continue;
      use.count += run.times;
      use.bytes += times * sent->bytes;
    }
  }
  if (!spread_.alone())
    step.stragglers =
        spread_.straggler * expected_slowest(spread_.ranks) * (step.compute + step.exposed + step.copying);
  return step;
}

std::string chrome_trace(const StepWalk& step, std::string_view title) {
  constexpr std::int64_t kDrawn = 4;                 // of runs that are alike
  constexpr std::size_t kPrograms = kClocks.size();  // the row of the programs themselves
  io::Json events = io::Json::array();
  const auto name = [&](const char* what, std::size_t row, std::string_view value) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", value}}}});
  };
  const auto bar = [&](std::string_view text, std::string_view kind, std::size_t row, double begin, double seconds) {
    events.push_back({{"name", text},
                      {"cat", kind},
                      {"ph", "X"},
                      {"ts", 1e6 * begin},
                      {"dur", 1e6 * seconds},
                      {"pid", 1},
                      {"tid", row}});
  };
  name("process_name", 0, title);
  for (std::size_t i = 0; i < kClocks.size(); ++i) name("thread_name", i, kClocks[i]);
  name("thread_name", kPrograms, "programs");
  double at = 0;
  for (const StepWalk::Run& run : step.runs()) {
    for (std::int64_t i = 0; i < std::min(run.times, kDrawn); ++i, at += run.timeline.end) {
      bar(run.program, "program", kPrograms, at, run.timeline.end);
      for (const ClockSpan& s : run.timeline.spans)
        bar(s.node->full_name(), s.waits ? "wait" : program::name_of(s.node->op), static_cast<std::size_t>(s.clock),
            at + s.begin, s.seconds());
    }
    if (const std::int64_t others = run.times - kDrawn; others > 0) {
      const double seconds = static_cast<double>(others) * run.timeline.end;
      bar(fmt::format("{}, {} times more", run.program, others), "program", kPrograms, at, seconds);
      at += seconds;
    }
  }
  return io::Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace redline::perf
