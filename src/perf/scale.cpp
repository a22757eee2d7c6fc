// The plan for several ranks: memory on each, the fastest setting of each mode, which mode, and how that scales.
#include "perf/scale.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shards.h"
#include "base/words.h"
#include "program/distribute.h"

namespace redline::perf {
namespace {

// Memory that NCCL takes of a card for its channels. It depends on the links and is not known before a run, so this is
// a guess, rather too large.
constexpr std::int64_t kLibraryBytes = std::int64_t{768} << 20;
// Buckets that are on their way or wait for it, in the type in which they travel.
constexpr std::int64_t kBucketsUnderWay = 2;

// Of the settings that fit, those which are fastest on one rank are laid out on all of them.
constexpr std::size_t kLookedAt = 6;

// Modes within this of the fastest are as fast; of them the one is taken that sends the fewest bytes.
constexpr double kAsFast = 0.995;

// The largest share that a rank owns of an array.
double largest_share(std::int64_t elements, int ranks) {
  const Shards shards{elements, ranks};
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) most = std::max(most, shards.part(r).elements());
  return static_cast<double>(most) / static_cast<double>(std::max<std::int64_t>(elements, 1));
}

double bytes_sent(const RankStep& times) {
  double bytes = 0;
  for (const CollectiveUse& u : times.collectives) bytes += (u.collective == Collective::all_reduce ? 2 : 1) * u.bytes;
  return bytes;
}

RankPlan rank_plan(const Plan& plan, const StepWork& work, Mode mode, int ranks, const Machine& machine,
                   const Fabric& fabric) {
  RankPlan p;
  p.mode = mode;
  p.ranks = ranks;
  p.setting = plan.setting;
  p.memory = memory_on_rank(plan, work, mode, ranks);
  p.tuning = plan.tuning;
  p.fits = p.memory.total() + p.tuning <= machine.memory;
  p.times = simulate(work, mode, ranks, fabric);
  p.tokens_per_step = work.tokens * ranks;
  p.tokens_per_s = p.tokens_per_step / p.times.total();
  p.mfu = p.tokens_per_s * work.flops / (ranks * machine.peak_flops);
  p.efficiency = work.compute() / p.times.total();
  return p;
}

// Plans of one rank with their work, which several modes ask for.
class Works {
 public:
  Works(const config::Config& config, const Machine& machine) : config_(config), machine_(machine) {}
  const StepWork& of(const Setting& s) {
    const auto key = std::tuple(s.batch_size, s.accumulate, s.recompute);
    const auto known = works_.find(key);
    if (known != works_.end()) return known->second;
    return works_.emplace(key, step_work(with_setting(config_, s), machine_)).first->second;
  }

 private:
  const config::Config& config_;
  const Machine& machine_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::string>, StepWork> works_;
};

}  // namespace

RankMemory memory_on_rank(const Plan& plan, const StepWork& work, Mode mode, int ranks) {
  const double own = ranks == 1 ? 1 : largest_share(work.parameters, ranks);
  const auto shared = [&](std::int64_t bytes, bool yes) {
    return yes ? static_cast<std::int64_t>(static_cast<double>(bytes) * own) : bytes;
  };
  const MemoryKinds& all = plan.memory;
  RankMemory m;
  m.masters = shared(all.masters, mode != Mode::ddp);
  m.moments = shared(all.moments, mode != Mode::ddp);
  m.averages = shared(all.averages, mode != Mode::ddp);
  m.working_copies = shared(all.working_copies, mode == Mode::fsdp);
  m.gradients = shared(all.gradients, mode == Mode::fsdp);
  m.activations = all.activations;
  m.rest = all.workspace + all.inputs + all.context;
  if (ranks == 1) return m;
  m.communication = kLibraryBytes;
  if (work.gradient_bytes < 4) {
    std::int64_t bucket = program::bucket_elements(ranks);
    for (const Block& b : work.blocks) bucket = std::max(bucket, b.gradients);
    m.communication += kBucketsUnderWay * bucket * work.gradient_bytes;
  }
  if (mode != Mode::fsdp) return m;
  std::int64_t most = 0, most_gradients = 0;
  for (std::size_t i = 0; i + 1 < work.blocks.size(); ++i) {
    const Block &a = work.blocks[i], &b = work.blocks[i + 1];
    most = std::max(most, std::max(a.reads, a.backward_reads) + std::max(b.reads, b.backward_reads));
    most_gradients = std::max(most_gradients, a.gradients + b.gradients);
  }
  m.gathered = most * work.weight_bytes + most_gradients * 4;
  return m;
}

ScalePlan plan_ranks(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                     const ChooseProgress& progress) {
  Machine roomy = machine;  // each mode needs another part of what one rank would
  roomy.memory = std::numeric_limits<std::int64_t>::max();
  const std::vector<Plan> plans = choose(config, roomy, progress).best;

  ScalePlan s;
  s.machine = machine;
  s.fabric = fabric;
  Works works(config, machine);
  std::vector<const Plan*> settings;  // of each mode
  for (const Mode mode : kModes) {
    std::optional<RankPlan> best, least;
    const Plan *best_setting = nullptr, *least_setting = nullptr;
    std::size_t looked_at = 0;
    for (const Plan& plan : plans) {
      // Memory first: laying a setting out takes longer.
      const StepWork& any = works.of(plans.front().setting);
      const RankMemory memory = memory_on_rank(plan, any, mode, ranks);
      const bool fits = memory.total() + plan.tuning <= machine.memory;
      if (!least || memory.total() < least->memory.total()) {
        least = rank_plan(plan, works.of(plan.setting), mode, ranks, machine, fabric);
        least_setting = &plan;
      }
      if (!fits || looked_at == kLookedAt) continue;
      ++looked_at;
      RankPlan p = rank_plan(plan, works.of(plan.setting), mode, ranks, machine, fabric);
      if (best && p.tokens_per_s <= best->tokens_per_s) continue;
      best = std::move(p);
      best_setting = &plan;
    }
    s.modes.push_back(best ? *best : least.value());
    settings.push_back(best ? best_setting : least_setting);
  }

  s.asked = config.parallel.mode != "auto";
  double fastest = 0;
  for (const RankPlan& p : s.modes)
    if (p.fits) fastest = std::max(fastest, p.tokens_per_s);
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < s.modes.size(); ++i) {
    const RankPlan& p = s.modes[i];
    if (s.asked ? name_of(p.mode) != config.parallel.mode : !p.fits || p.tokens_per_s < kAsFast * fastest) continue;
    if (!chosen || bytes_sent(p.times) < bytes_sent(s.modes[*chosen].times)) chosen = i;
  }
  s.chosen = chosen.value_or(s.modes.size() - 1);  // nothing fits: fsdp needs least
  s.plan = *settings[s.chosen];

  std::vector<int> numbers = {1, 8, 64, 1024, ranks};
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const int n : numbers)
    if (n <= fabric.ranks_per_node || fabric.between.bus_bandwidth > 0)
      s.scaling.push_back(rank_plan(s.plan, works.of(s.plan.setting), s.choice().mode, n, machine, fabric));
  return s;
}

std::string why(const ScalePlan& s) {
  const RankPlan& c = s.choice();
  const double room = gib(s.machine.memory);
  if (!c.fits)
    return fmt::format(
        "{} does not fit into {:.1f} GiB: even {} with train.recompute = \"{}\" needs {:.1f} GiB a rank; "
        "take more GPUs, lower train.seq_len or the model's size",
        s.asked ? name_of(c.mode) : "no mode", room, counted(c.setting.batch_size, "row"), c.setting.recompute,
        gib(c.memory.total() + c.tuning));
  if (s.asked) return fmt::format("parallel.mode = \"{}\" asks for it", name_of(c.mode));
  std::vector<std::string> others;
  for (const RankPlan& p : s.modes) {
    if (&p == &c) continue;
    const double slower = 100 * (1 - p.tokens_per_s / c.tokens_per_s);
    const double more = bytes_sent(p.times) / std::max(bytes_sent(c.times), 1.0);
    if (!p.fits)
      others.push_back(fmt::format("{} needs {:.1f} GiB a rank", name_of(p.mode), gib(p.memory.total() + p.tuning)));
    else if (slower < 100 * (1 - kAsFast))
      others.push_back(fmt::format("{} is as fast but sends {:.2f} times the bytes", name_of(p.mode), more));
    else
      others.push_back(fmt::format("{} is {:.1f}% slower", name_of(p.mode), slower));
  }
  return fmt::format("it is the fastest that fits into {:.1f} GiB; {}", room, fmt::join(others, ", "));
}

}  // namespace redline::perf
