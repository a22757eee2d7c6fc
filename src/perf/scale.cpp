// A step on several ranks: what one rank does, read off its lowered programs, and the same on two streams with what it
// sends and waits for. From that come the memory on each rank, the fastest setting of each mode, and the choice of a
// mode.
#include "perf/scale.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shards.h"
#include "base/words.h"
#include "model/lowering.h"
#include "perf/cards.h"
#include "perf/roofline.h"
#include "program/passes.h"
#include "program/program.h"
#include "train/memory_advice.h"

namespace redline::perf {
namespace {

using program::Phase;
using program::Role;

// Squares by group, loss and pairs: what the update is decided by, one array of doubles.
constexpr double kTotalsBytes = 1024 * 8;

std::size_t block_of(const program::Place& place, std::size_t blocks) {
  if (place.layer != program::kNoLayer) return 1 + static_cast<std::size_t>(place.layer);
  return place.part == program::Part::head ? blocks - 1 : 0;
}

std::vector<Block> empty_blocks(const program::Program& program) {
  std::int32_t last = -1;
  for (const program::Node& node : program.nodes) last = std::max(last, node.place.layer);
  std::vector<Block> blocks(static_cast<std::size_t>(last) + 3);
  blocks.front().name = "embedding";
  for (std::size_t i = 1; i + 1 < blocks.size(); ++i) blocks[i].name = fmt::format("layer {}", i - 1);
  blocks.back().name = "head";
  return blocks;
}

// Counts the parameters that each block reads and writes, from the operands of its nodes.
void count_elements(std::vector<Block>& blocks, const program::ProgramSet& set, const program::Program& program) {
  std::vector<std::set<program::ValueId>> forward(blocks.size()), backward(blocks.size());
  std::set<program::ValueId> read;
  std::vector<std::pair<program::ValueId, std::size_t>> written;  // the last writer of each
  for (const program::Node& node : program.nodes) {
    const std::size_t at = block_of(node.place, blocks.size());
    Block& block = blocks[at];
    program::each_operand(node.op, [&](std::string_view, program::ValueId id, Access) {
      const program::Value& value = set.at(id);
      const std::int64_t elements = value.shape.elements();
      if (value.role == Role::parameter || value.role == Role::working) {
        const bool going = node.phase == Phase::forward;
        if (!(going ? forward : backward)[at].insert(id).second) return;
        (going ? block.reads : block.backward_reads) += elements;
        if (going && read.insert(id).second) block.first_reads += elements;
      }
      if (value.role != Role::gradient) return;
      const auto known = std::ranges::find(written, id, &std::pair<program::ValueId, std::size_t>::first);
      if (known == written.end())
        written.emplace_back(id, at);
      else
        known->second = at;
    });
  }
  for (const auto& [id, at] : written) blocks[at].gradients += set.at(id).shape.elements();
}

// Two streams: the one that computes goes on unless it waits; collectives run one after the other on the other.
class Streams {
 public:
  Streams(const Fabric& fabric, int ranks) : fabric_(fabric), ranks_(ranks) {}

  void compute(double seconds) {
    now_ += seconds;
    times_.compute += seconds;
  }

  struct Started {
    std::size_t use = 0;
    double end = 0;
  };
  // Queues the collective after those under way.
  Started start(Collective collective, std::string_view of, double bytes) {
    const auto known = std::ranges::find_if(
        times_.collectives, [&](const CollectiveUse& u) { return u.collective == collective && u.of == of; });
    const std::size_t use = static_cast<std::size_t>(known - times_.collectives.begin());
    if (known == times_.collectives.end()) times_.collectives.push_back({.collective = collective, .of = of});
    const double seconds = collective_seconds(fabric_, collective, bytes, ranks_);
    CollectiveUse& u = times_.collectives[use];
    ++u.count;
    u.bytes += bytes;
    u.seconds += seconds;
    wire_ = std::max(wire_, now_) + seconds;
    const Started started{use, wire_};
    if (!fabric_.beside_compute) wait(started);
    return started;
  }

  void wait(const Started& started) {
    const double waited = std::max(0.0, started.end - now_);
    now_ += waited;
    times_.exposed += waited;
    if (waited > 0) times_.collectives[started.use].exposed += waited;
  }

  RankStep take() { return std::move(times_); }

 private:
  const Fabric& fabric_;
  int ranks_;
  double now_ = 0, wire_ = 0;
  RankStep times_;
};

class Step {
 public:
  Step(const StepWork& work, Mode mode, int ranks, const Fabric& fabric)
      : work_(work), mode_(mode), ranks_(ranks), alone_(ranks == 1), streams_(fabric, ranks) {}

  RankStep run() {
    for (std::int64_t i = 0; i < work_.micro_batches; ++i) {
      forward(i == 0);
      backward(i == 0, i + 1 == work_.micro_batches);
    }
    for (const Streams::Started& reduced : reduced_) streams_.wait(reduced);
    const double share = mode_ == Mode::ddp ? 1 : 1.0 / ranks_;
    streams_.compute(share * work_.update);
    if (!alone_) streams_.wait(streams_.start(Collective::all_reduce, "totals", kTotalsBytes));
    return streams_.take();
  }

 private:
  Streams::Started gather(std::string_view of, std::int64_t elements) {
    if (elements == 0) return {};
    return streams_.start(Collective::gather_shards, of, static_cast<double>(elements) * work_.weight_bytes);
  }

  void forward(bool first) {
    const bool gathers = !alone_ && (mode_ == Mode::fsdp || (mode_ == Mode::zero1 && first));
    const auto ahead = [&](std::size_t i) {
      const Block& b = work_.blocks[i];
      return gathers ? gather("weights", mode_ == Mode::fsdp ? b.reads : b.first_reads) : Streams::Started{};
    };
    Streams::Started next = ahead(0);
    for (std::size_t i = 0; i < work_.blocks.size(); ++i) {
      streams_.wait(next);
      if (i + 1 < work_.blocks.size()) next = ahead(i + 1);
      streams_.compute(work_.blocks[i].forward);
    }
  }

  // The last block has its weights from the forward pass.
  void backward(bool first, bool last) {
    const bool gathers = !alone_ && mode_ == Mode::fsdp, reduces = !alone_ && (last || mode_ == Mode::fsdp);
    Streams::Started next;
    std::int64_t pending = 0;
    for (std::size_t i = work_.blocks.size(); i-- > 0;) {
      const Block& b = work_.blocks[i];
      streams_.wait(next);
      next =
          gathers && i > 0 ? gather("weights, backward pass", work_.blocks[i - 1].backward_reads) : Streams::Started{};
      streams_.compute(first ? b.backward : b.backward_adding);
      pending += b.gradients;
      if (reduces && (pending >= program::bucket_elements(ranks_) || i == 0 || mode_ == Mode::fsdp)) reduce(pending);
    }
  }

  void reduce(std::int64_t& pending) {
    if (pending == 0) return;
    const auto bytes = static_cast<double>(pending) * work_.gradient_bytes;
    reduced_.push_back(
        streams_.start(mode_ == Mode::ddp ? Collective::all_reduce : Collective::reduce_shards, "gradients", bytes));
    pending = 0;
  }

  const StepWork& work_;
  Mode mode_;
  int ranks_;
  bool alone_;
  Streams streams_;
  std::vector<Streams::Started> reduced_;
};

}  // namespace

double StepWork::compute() const {
  double seconds = update;
  for (const Block& b : blocks)
    seconds += b.forward + b.backward + static_cast<double>(micro_batches - 1) * (b.forward + b.backward_adding);
  return seconds;
}

StepWork step_work(const config::Config& asked, const Machine& machine) {
  const config::Config config = as_possible(asked, machine);
  const model::LoweringOptions options = model::lowering_options(config, machine.kind);
  const model::LoweredModel lowered = model::lower(config.model, options);
  const program::ProgramSet& set = lowered.set;
  const auto rows = static_cast<double>(options.batch.rows), seq_len = static_cast<double>(options.batch.seq_len);

  const program::Program& first = set.find(model::kFirst);
  StepWork work;
  work.blocks = empty_blocks(first);
  count_elements(work.blocks, set, first);
  const auto add_times = [&](const program::Program& program, double Block::*forward, double Block::*backward) {
    const std::vector<double> seconds = node_seconds(set, program, rows, seq_len, machine);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      const program::Node& node = program.nodes[i];
      double Block::*part = node.phase == Phase::forward ? forward : backward;
      if (part) work.blocks[block_of(node.place, work.blocks.size())].*part += seconds[i];
    }
  };
  add_times(first, &Block::forward, &Block::backward);
  work.micro_batches = config.train.accumulate;
  if (work.micro_batches > 1) add_times(set.find(model::kAccumulate), nullptr, &Block::backward_adding);

  work.update = expected_seconds(set, model::kUpdate, rows, seq_len, machine);
  work.parameters = lowered.layout.total;
  const program::ValueId working = lowered.at(optim::kWorking);
  work.weight_bytes = static_cast<int>(size_of(working.present() ? set.at(working).dtype : DType::f32));
  work.gradient_bytes = config.parallel.wire == "bf16" ? 2 : 4;
  work.tokens = rows * seq_len * static_cast<double>(work.micro_batches);
  work.flops = model::model_flops(lowered, options.batch, rows * seq_len, program::pairs_of_rows(rows, seq_len)) /
               (rows * seq_len);
  return work;
}

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

double straggler_share(int ranks, double constant) { return constant * expected_slowest(ranks); }

RankStep simulate(const StepWork& work, Mode mode, int ranks, const Fabric& fabric, double straggler) {
  RankStep times = Step(work, mode, ranks, fabric).run();
  times.stragglers = straggler_share(ranks, straggler) * (times.compute + times.exposed);
  return times;
}

namespace {

// Memory that NCCL takes of a card for its channels. It depends on the links and is not known before a run, so this is
// a guess, rather too large.
constexpr std::int64_t kLibraryBytes = std::int64_t{768} << 20;
// Buckets that are on their way or wait for it, in the type in which they travel.
constexpr std::int64_t kBucketsUnderWay = 2;

// So many of the settings that fit, those which are fastest on one rank, are laid out on all of them.
constexpr std::size_t kLookedAt = 6;

// Modes within this of the fastest are as fast; of them the one is taken that sends the fewest bytes.
constexpr double kAsFast = 0.995;
constexpr double kAsLong = 1.005;  // the same of times, on ranks that were started

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
    const auto known = works_.find(s);
    if (known != works_.end()) return known->second;
    return works_.emplace(s, step_work(with_setting(config_, s), machine_)).first->second;
  }

 private:
  const config::Config& config_;
  const Machine& machine_;
  std::map<Setting, StepWork> works_;
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
                     const SearchOptions& options) {
  Machine roomy = machine;  // each mode needs another part of what one rank would
  roomy.memory = std::numeric_limits<std::int64_t>::max();
  const std::vector<Plan> plans = choose(config, roomy, options).best;

  ScalePlan s;
  s.machine = machine;
  s.fabric = fabric;
  s.config = config;
  Works works(config, machine);
  std::vector<const Plan*> settings;  // of each mode
  for (const Mode mode : modes_for(config, ranks)) {
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
  s.chosen = chosen.value_or(s.modes.size() - 1);  // nothing fits: the last needs least
  s.plan = *settings[s.chosen];

  std::vector<int> numbers = {1, 8, 64, 1024, ranks};
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const int n : numbers)
    if (n <= fabric.ranks_per_node || fabric.between.bus_bandwidth > 0)
      s.scaling.push_back(rank_plan(s.plan, works.of(s.plan.setting), s.choice().mode, n, machine, fabric));
  return s;
}

std::vector<Mode> modes_for(const config::Config& config, int ranks) {
  if (config.precision.matmul == "fp8" && ranks > 1) return {Mode::ddp};
  return {kModes.begin(), kModes.end()};
}

namespace {

// Whether so many ranks hold the setting of a configuration that keeps least, in the mode that shares most.
class Least {
 public:
  Least(const config::Config& config, const Machine& machine) : config_(config), machine_(machine) {
    const config::Config least = with_setting(config, least_setting(config));
    plan_ = make_plan(least, machine);
    work_ = step_work(least, machine);
  }
  bool fits_on(int ranks) const {
    const RankMemory memory = memory_on_rank(plan_, work_, modes_for(config_, ranks).back(), ranks);
    return memory.total() + plan_.tuning <= machine_.memory;
  }

 private:
  const config::Config& config_;
  const Machine& machine_;
  Plan plan_;
  StepWork work_;
};

constexpr int kMostRanks = kCutGroups;

}  // namespace

int fewest_ranks(const config::Config& config, const Machine& machine) {
  const Least least(config, machine);
  for (int ranks = 2; ranks <= kMostRanks; ranks *= 2)
    if (least.fits_on(ranks)) return ranks;
  return 0;
}

ScalePlan plan_ranks_or_relax(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                              const SearchOptions& options) {
  ScalePlan asked = plan_ranks(config, machine, fabric, ranks, options);
  if (asked.choice().fits) return asked;
  asked.asked_for = asked.choice();
  config::Config open = config;
  open.parallel.mode = "auto";
  std::vector<config::Config> ways = relaxed_ways(open, machine);
  ways.insert(ways.begin(), open);
  SearchOptions any = options;
  any.any_recompute = true;
  for (const config::Config& way : ways) {
    if (!Least(way, machine).fits_on(ranks)) continue;  // two plans tell whether there is anything to be found
    ScalePlan found = plan_ranks(way, machine, fabric, ranks, any);
    if (!found.choice().fits) continue;
    found.asked_for = std::move(asked.asked_for);
    found.relaxed = train::changed_keys(open, way);
    std::erase_if(found.relaxed, [](const std::string& key) { return key.starts_with("train.accumulate"); });
    return found;
  }
  asked.enough_gpus = fewest_ranks(open, machine);
  if (asked.enough_gpus > 0) return asked;
  asked.enough_gpus = fewest_ranks(ways.back(), machine);  // the shortest rows and the coarsest moments
  asked.enough_with = train::changed_keys(open, ways.back());
  return asked;
}

std::string why(const ScalePlan& s) {
  const RankPlan& c = s.choice();
  const double room = gib(s.machine.memory);
  const auto needs = [](const RankPlan& p) {
    return fmt::format("{} with train.recompute = \"{}\" needs {:.1f} GiB a rank", counted(p.setting.batch_size, "row"),
                       p.setting.recompute, gib(p.memory.total() + p.tuning));
  };
  if (!c.fits) {
    std::string text =
        fmt::format("{} into {:.1f} GiB: even {}; ",
                    s.asked ? fmt::format("{} does not fit", name_of(c.mode)) : "no mode fits", room, needs(c));
    if (!s.asked_for) return text + "`redline plan --gpus` looks for what would";
    if (s.enough_gpus > 0)
      return text + fmt::format(
                        "no other optim.moments, train.recompute or train.seq_len mends that; {} hold it with "
                        "parallel.mode = \"fsdp\" (--gpus {}{}{}), or make the model smaller",
                        counted(s.enough_gpus, "GPU"), s.enough_gpus, s.enough_with.empty() ? "" : " ",
                        fmt::join(s.enough_with, " "));
    if (s.config.precision.matmul == "fp8")
      return text +
             "ranks share a run's state only without precision.matmul = \"fp8\": plan it in bf16, or make the "
             "model smaller";
    return text + "no other setting and no number of GPUs mends that: make the model smaller";
  }
  std::string before;
  if (s.asked_for) {
    before =
        fmt::format("as it was asked for nothing fits: {}, even {}; ", name_of(s.asked_for->mode), needs(*s.asked_for));
    if (!s.relaxed.empty()) before += fmt::format("with {} ", fmt::join(s.relaxed, " "));
  }
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
  if (others.empty()) return before + fmt::format("it fits into {:.1f} GiB, and fp8 goes with no other mode", room);
  return before + fmt::format("it is the fastest that fits into {:.1f} GiB; {}", room, fmt::join(others, ", "));
}

namespace {

// On the rank with most of it.
std::int64_t memory_of(const config::Config& config, device::Kind kind, dist::Mode mode, int ranks) {
  model::LoweringOptions o = model::lowering_options(config, kind);
  o.sharing = {.rank = ranks - 1, .ranks = ranks, .mode = mode, .bf16_wire = config.parallel.wire == "bf16"};
  return model::lower(config.model, o).set.memory.device.total;
}

}  // namespace

RankMachine rank_machine(device::Device& device, int ranks, int ranks_per_node) {
  RankMachine m{device.kind(), device.available_bytes(), {}};
  const Card* const card = device.kind() == device::Kind::cuda ? find_card(device.name()) : nullptr;
  if (!card) return m;
  const Network& network = network_called(ranks > ranks_per_node ? "ndr" : kNoNetwork);
  m.known = {machine_of(*card), fabric_of(*card, network, ranks_per_node, ranks_per_node)};
  return m;
}

ModeChoice choose_mode(const config::Config& config, const RankMachine& machine, int ranks) {
  struct Way {
    dist::Mode mode;
    double seconds = 0;
  };
  std::vector<Way> fit;
  const std::optional<StepWork> work =
      machine.known ? std::optional(step_work(config, machine.known->machine)) : std::nullopt;
  for (const dist::Mode mode : kModes) {
    if (memory_of(config, machine.kind, mode, ranks) > machine.available) continue;
    fit.push_back({mode, work ? simulate(*work, mode, ranks, machine.known->fabric).total() : 0});
  }
  if (fit.empty()) return {dist::Mode::fsdp, "nothing fits, and it needs least"};
  const auto is_zero1 = [](const Way& w) { return w.mode == dist::Mode::zero1; };
  const auto zero1 = std::ranges::find_if(fit, is_zero1);
  if (!work) {
    if (zero1 != fit.end()) return {dist::Mode::zero1, "it fits"};
    return {fit.back().mode, "zero1 does not fit"};
  }
  const Way fastest = *std::ranges::min_element(fit, {}, &Way::seconds);
  const Way chosen = zero1 != fit.end() && zero1->seconds <= kAsLong * fastest.seconds ? *zero1 : fastest;
  std::vector<std::string> times;
  for (const Way& w : fit) times.push_back(fmt::format("{} {:.0f} ms", name_of(w.mode), 1e3 * w.seconds));
  return {chosen.mode, fmt::format("the fastest by the plan ({})", fmt::join(times, ", "))};
}

}  // namespace redline::perf
