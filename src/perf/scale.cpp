// The fastest setting of each mode, the choice of a mode, and what to do where nothing fits.
#include "perf/scale.h"

#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "config/load.h"
#include "perf/fit.h"
#include "train/memory_advice.h"
#include "train/on_ranks.h"

namespace redline::perf {
namespace {

constexpr double kAsFast = 0.995;  // ways within this of the fastest are as fast

config::Config with_way(config::Config config, const Way& way) {
  config.parallel.shards = way.shards;
  return config;
}

// Plans on ranks, each beside one rank alone with its setting.
class Ranked {
 public:
  Ranked(const config::Config& config, const Machine& machine, const Filling& filling)
      : config_(config), machine_(machine), filling_(filling) {}
  RankPlan operator()(Plan plan) {
    const auto [at, fresh] = alone_.try_emplace(plan.setting);
    if (fresh)
      at->second = make_plan(with_setting(config_, plan.setting), machine_, {}, filling_).expected.tokens_per_s;
    RankPlan p{std::move(plan), 0};
    p.efficiency = p.expected.tokens_per_s / (p.ranks * at->second);
    return p;
  }

 private:
  const config::Config& config_;
  const Machine& machine_;
  const Filling& filling_;
  std::map<Setting, double> alone_;  // tokens a second
};

// "1 row with train.recompute = "block" needs 12.30 GiB a rank".
std::string rank_needs(const Plan& p, const config::Config& config, const Machine& machine) {
  return fmt::format("{} with train.recompute = \"{}\" needs {} a rank", counted(p.setting.batch_size, "row"),
                     p.setting.recompute, needs_in_words(p, config, machine));
}

// The run as it was asked for with bytes moved, as it would move them itself, in the mode that was chosen; where that
// fits in no way, cut otherwise.
bool move_bytes(ScalePlan& s, const Filling& filling) {
  const RankPlan& least = s.choice();
  if (!chooses(s.config)) return false;
  Machine machine = s.machine;
  machine.host_memory /= std::min(least.ranks, s.fabric.ranks_per_node);  // shared out among the ranks of a host
  Room room = room_on(s.config, machine);
  room.device = std::min(room.device, s.machine.memory - (least.memory.total() - least.memory.arena));
  const dist::Sharing sharing = dist::sharing_of(s.config.parallel, 0, least.ranks, least.mode);
  config::Config placed = s.config;
  Fit fit = find_fit(placed, s.machine, room, sharing, filling);
  std::string_view who = kAsAsked;
  if (fit.ways.empty()) {
    std::optional<MovedCut> cut = cut_that_moves(s.config, s.machine, room, sharing, filling);
    if (!cut || cut->fit.ways.empty()) return false;
    placed = with_setting(placed, cut->setting);
    fit = std::move(cut->fit);
    who = kCutSo;
  }
  placed.memory.placement = fit.ways[0].placement;
  Plan plan = make_plan(placed, s.machine, {.mode = least.mode, .ranks = least.ranks, .fabric = s.fabric}, filling);
  if (!plan.fits) return false;
  s.modes[s.chosen] = Ranked(s.config, s.machine, filling)(std::move(plan));
  for (RankPlan& r : s.scaling)
    if (r.ranks == s.choice().ranks) r = s.choice();
  s.moved = in_words(fit, placed, who);
  s.placement = placed.memory.placement;
  return true;
}

}  // namespace

double RankPlan::tokens_of_ranks() const { return static_cast<double>(tokens_per_step) * ranks; }

std::string Way::name() const {
  return shards > 0 ? fmt::format("{} of {}", name_of(mode), shards) : std::string(name_of(mode));
}

std::vector<Way> ways_for(const config::Config& config, const std::optional<Fabric>& fabric, int ranks) {
  const int shards = static_cast<int>(config.parallel.shards);
  std::vector<Way> ways;
  for (const Mode mode : train::modes_for(config, ranks)) {
    if (mode == Mode::fsdp && shards == 0 && fabric && fabric->nodes(ranks) > 1 && fabric->ranks_per_node > 1 &&
        ranks % fabric->ranks_per_node == 0)
      ways.push_back({mode, fabric->ranks_per_node});
    ways.push_back({mode, mode == Mode::ddp ? 0 : shards});
  }
  return ways;
}

std::optional<std::size_t> fastest_way(std::span<const RankPlan> plans) {
  double fastest = 0;
  for (const RankPlan& p : plans)
    if (p.fits) fastest = std::max(fastest, p.expected.tokens_per_s);
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i].fits || plans[i].expected.tokens_per_s < kAsFast * fastest) continue;
    if (!chosen || plans[i].times.bytes_sent() < plans[*chosen].times.bytes_sent()) chosen = i;
  }
  return chosen;
}

ScalePlan plan_ranks(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                     const SearchOptions& options) {
  ScalePlan s;
  s.machine = machine;
  s.fabric = fabric;
  s.config = config;
  SearchOptions best_alone = options;
  best_alone.runners_up = 0;
  Ranked ranked(s.config, machine, options.filling);
  // Rows that somebody wrote stay, where they fit.
  const bool keeps_rows = config.origins.written("train.batch_size") && !config.train.automatic_batch_size;
  for (const Way& way : ways_for(config, fabric, ranks)) {
    const config::Config shared = with_way(config, way);
    const Spread spread{.mode = way.mode, .ranks = ranks, .fabric = fabric};
    std::optional<Plan> plan;
    if (keeps_rows) plan = make_plan(shared, machine, spread, options.filling);
    if (!plan || !plan->fits) {
      Choice choice = choose(shared, machine, best_alone, spread);
      plan = choice.best.empty() ? std::move(choice.smallest) : std::move(choice.best[0]);
    }
    s.modes.push_back(ranked(std::move(*plan)));
  }
  REDLINE_CHECK(!s.modes.empty(), "there is no mode for it");

  s.asked = config.parallel.mode != "auto";
  const auto was_asked = [&](const RankPlan& p) {
    return name_of(p.mode) == config.parallel.mode && p.shards == config.parallel.shards;
  };
  s.chosen = s.asked ? static_cast<std::size_t>(std::ranges::find_if(s.modes, was_asked) - s.modes.begin())
                     : fastest_way(s.modes).value_or(s.modes.size());
  s.chosen = std::min(s.chosen, s.modes.size() - 1);  // nothing fits: the last needs least
  s.config.parallel.shards = s.choice().shards;

  std::vector<int> numbers = {1, 8, 64, 1024, ranks};
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  for (const int n : numbers) {
    if (n == ranks) s.scaling.push_back(s.choice());
    if (n == ranks || (n > fabric.ranks_per_node && fabric.between.bus_bandwidth == 0)) continue;
    if (n > 1 && (n % config.parallel.sequence != 0 || n % std::max(1, s.choice().shards) != 0)) continue;
    s.scaling.push_back(ranked(make_plan(with_setting(s.config, s.choice().setting), machine,
                                         {.mode = s.choice().mode, .ranks = n, .fabric = fabric}, options.filling)));
  }
  return s;
}

ScalePlan plan_ranks_or_relax(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                              const SearchOptions& options) {
  ScalePlan asked = plan_ranks(config, machine, fabric, ranks, options);
  if (asked.choice().fits) return asked;
  asked.asked_for = asked.choice();
  config::Config open = config;
  open.parallel.mode = "auto";
  open.parallel.shards = 0;
  std::vector<config::Config> ways = relaxed_ways(open), coarser = train::relaxations(open);
  ways.resize(ways.size() - coarser.size());  // those that change no bit of a run
  ways.insert(ways.begin(), open);
  SearchOptions any = options;
  any.any_recompute = true;
  const auto may_fit = [&](const config::Config& way) {  // one plan tells whether there is anything to be found
    const std::vector<Mode> modes = train::modes_for(way, ranks);
    return !modes.empty() && least_plan(way, machine, {.mode = modes.back(), .ranks = ranks}).fits;
  };
  const auto may_fit_moved = [&](const config::Config& way) {
    const std::vector<Mode> modes = train::modes_for(way, ranks);
    if (modes.empty() || !chooses(way)) return false;
    const Spread spread{.mode = modes.back(), .ranks = ranks};
    return least_moved(way, least_plan(way, machine, spread).setting, machine, spread).fits;
  };
  const auto fits = [&](const config::Config& way, bool moved) {
    if (!(moved ? may_fit_moved(way) : may_fit(way))) return false;
    ScalePlan found = plan_ranks(way, machine, fabric, ranks, any);
    if (!found.choice().fits && !(moved && move_bytes(found, options.filling))) return false;
    found.asked_for = std::move(asked.asked_for);
    found.relaxed = train::changed_keys(open, way);
    std::erase_if(found.relaxed, [](const std::string& key) { return key.starts_with("train.accumulate"); });
    asked = std::move(found);
    return true;
  };
  const auto fits_with = [&](const config::Config& way) { return fits(way, false); };
  const auto fits_moved = [&](const config::Config& way) { return fits(way, true); };
  const config::Config& least = coarser.empty() ? ways.back() : coarser.back();
  const bool hopeless = !may_fit(least);
  if (!hopeless && std::ranges::any_of(ways, fits_with)) return asked;
  if (move_bytes(asked, options.filling)) return asked;
  if (!hopeless && std::ranges::any_of(coarser, fits_with)) return asked;
  if (may_fit_moved(least) && std::ranges::any_of(coarser, fits_moved)) return asked;
  if (config.memory.fit == "auto")
    asked.least_moved = least_moved(asked.config, asked.choice().setting, machine,
                                    {.mode = asked.choice().mode, .ranks = ranks, .fabric = fabric});
  if (!coarser.empty()) ways.push_back(coarser.back());
  asked.enough_gpus = fewest_ranks(open, machine);
  if (asked.enough_gpus > 0) return asked;
  asked.enough_gpus = fewest_ranks(ways.back(), machine);
  asked.enough_with = train::changed_keys(open, ways.back());
  return asked;
}

std::string why(const ScalePlan& s) {
  const RankPlan& c = s.choice();
  const std::string room = room_in_words(s.config, s.machine);
  if (!c.fits) {
    std::string text =
        fmt::format("{} into {}: even {}{}; ", s.asked ? fmt::format("{} does not fit", c.name()) : "no mode fits",
                    room, rank_needs(c, s.config, s.machine), moved_in_words(s.least_moved, c, s.config, s.machine));
    if (!s.asked_for) return text + "`redline plan --gpus` looks for what would";
    if (s.enough_gpus > 0)
      return text + fmt::format(
                        "no other optim.moments, train.recompute or train.seq_len mends that; {} hold it with "
                        "parallel.mode = \"fsdp\" (--gpus {}{}{}), or make the model smaller",
                        counted(s.enough_gpus, "GPU"), s.enough_gpus, s.enough_with.empty() ? "" : " ",
                        fmt::join(s.enough_with, " "));
    if (const train::NotOnRanks* const no = train::refused_by(s.config, Mode::fsdp))
      return text + fmt::format(
                        "parallel.mode = \"fsdp\", which keeps least, does not go with {} ({}): plan without it, "
                        "or make the model smaller",
                        no->setting, no->because);
    return text + "no other setting and no number of GPUs mends that: make the model smaller";
  }
  std::string before;
  if (s.asked_for) {
    before = fmt::format("as it was asked for nothing fits: {}, even {}; ", s.asked_for->name(),
                         rank_needs(*s.asked_for, s.config, s.machine));
    if (!s.relaxed.empty()) before += fmt::format("with {} ", fmt::join(s.relaxed, " "));
  }
  if (!s.moved.empty()) return before + s.moved;
  if (s.asked) return fmt::format("parallel.mode = \"{}\" asks for it", name_of(c.mode));
  std::vector<std::string> others;
  for (const RankPlan& p : s.modes) {
    if (&p == &c) continue;
    const double slower = 100 * (1 - p.expected.tokens_per_s / c.expected.tokens_per_s);
    const double more = p.times.bytes_sent() / std::max(c.times.bytes_sent(), 1.0);
    if (!p.fits)
      others.push_back(fmt::format("{} needs {} a rank", p.name(), needs_in_words(p, s.config, s.machine)));
    else if (slower < 100 * (1 - kAsFast))
      others.push_back(fmt::format("{} is as fast but sends {:.2f} times the bytes", p.name(), more));
    else
      others.push_back(fmt::format("{} is {:.1f}% slower", p.name(), slower));
  }
  for (const Mode mode : kModes)
    if (std::ranges::find(s.modes, mode, &RankPlan::mode) == s.modes.end())
      others.push_back(
          fmt::format("{} does not go with {}", name_of(mode), train::refused_by(s.config, mode)->setting));
  return before + fmt::format("it is the fastest that fits into {}; {}", room, fmt::join(others, ", "));
}

const Network& network_between(const config::Parallel& parallel) {
  return network_called(parallel.network == "auto" ? kUsualNetwork : std::string_view(parallel.network));
}

Fabric fabric_between(const Card& card, const config::Parallel& parallel, int ranks, int ranks_per_node) {
  const Network& network = ranks > ranks_per_node ? network_between(parallel) : network_called(kNoNetwork);
  const int per_node = network.id == kNoNetwork ? std::max(ranks, ranks_per_node) : ranks_per_node;
  return fabric_of(card, network, per_node, per_node);
}

RankMachine rank_machine(device::Device& device, const config::Parallel& parallel, int ranks, int ranks_per_node) {
  RankMachine m;
  m.machine.kind = device.kind();
  m.machine.memory = device.available_bytes();
  if (m.machine.kind == device::Kind::cpu) m.machine.memory /= ranks_per_node;  // which share the machine's
  const Card* const card = device.kind() == device::Kind::cuda ? find_card(device.name()) : nullptr;
  if (!card) return m;
  return {machine_now(device), fabric_between(*card, parallel, ranks, ranks_per_node)};
}

bool was_chosen(const config::Config& config, std::string_view key) {
  return config.origins.prefix({key}).starts_with(config::kChosen);
}

void reopen_mode(config::Config& config) {
  if (was_chosen(config, "parallel.mode")) config.parallel.mode = "auto";
  if (was_chosen(config, "parallel.shards")) config.parallel.shards = 0;
}

void set_mode(config::Config& config, const ModeChoice& choice, int ranks) {
  const std::string place =
      fmt::format("{}parallel.mode = auto on {}: {}", config::kChosen, counted(ranks, "rank"), choice.why);
  config.parallel.mode = name_of(choice.mode);
  config.origins.set("parallel.mode", place, true);
  if (config.parallel.shards == choice.shards) return;
  config.parallel.shards = choice.shards;
  config.origins.set("parallel.shards", place, true);
}

ModeChoice choose_mode(const config::Config& config, const RankMachine& m, int ranks) {
  const std::vector<Way> ways = ways_for(config, m.fabric, ranks);
  REDLINE_CHECK(!ways.empty(), "there is no mode for it");
  if (ways.size() == 1) {
    const Mode refused = ways[0].mode == Mode::ddp ? Mode::fsdp : Mode::ddp;
    return {ways[0], fmt::format("the only one that goes with {}", train::refused_by(config, refused)->setting)};
  }
  if (!m.fabric) {
    const std::int64_t allowed = std::min(m.machine.memory, config::bytes_of_amount(config.memory.limit));
    const auto fits = [&](const Way& way) {
      const dist::Sharing sharing = dist::sharing_of(config.parallel, 0, ranks, way.mode);
      return train::memory_needed(config, m.machine.kind, sharing) <= allowed;
    };
    const auto zero1 = std::ranges::find(ways, Mode::zero1, &Way::mode);
    if (zero1 != ways.end() && fits(*zero1)) return {*zero1, "it fits"};
    return {ways.back(), fits(ways.back()) ? "zero1 does not fit" : "nothing fits, and it needs least"};
  }
  std::vector<RankPlan> plans;
  std::vector<std::string> times;
  for (const Way& way : ways) {
    plans.push_back(
        {make_plan(with_way(config, way), m.machine, {.mode = way.mode, .ranks = ranks, .fabric = m.fabric}), 0});
    if (plans.back().fits)
      times.push_back(fmt::format("{} {:.0f} ms", way.name(), 1e3 * plans.back().expected.step_seconds));
  }
  const std::optional<std::size_t> chosen = fastest_way(plans);
  if (!chosen) return {ways.back(), "nothing fits, and it needs least"};
  std::string why = fmt::format("the fastest by the plan ({})", fmt::join(times, ", "));
  if (m.fabric->nodes(ranks) > 1 && config.parallel.network == "auto")
    why += fmt::format("; {} is taken for granted between machines, and parallel.network names another",
                       network_called(kUsualNetwork).name);
  return {ways[*chosen], std::move(why)};
}

AutoBatch find_batch_size_on_ranks(const config::Config& config, device::Device& device, int ranks,
                                   int ranks_per_node) {
  const RankMachine rank = rank_machine(device, config.parallel, ranks, ranks_per_node);
  const std::optional<Fabric>& fabric = rank.fabric;
  Machine machine = fabric ? rank.machine : machine_now(device);
  if (machine.kind == device::Kind::cpu) machine.memory = rank.machine.memory;
  std::vector<Way> ways = ways_for(config, fabric, ranks);
  if (config.parallel.mode != "auto")
    ways = {{dist::mode_named(config.parallel.mode), static_cast<int>(config.parallel.shards)}};
  std::vector<RankPlan> plans;
  std::optional<Plan> least;
  for (const Way& way : ways) {
    Choice choice =
        choose(with_way(config, way), machine, {.runners_up = 0}, {.mode = way.mode, .ranks = ranks, .fabric = fabric});
    if (!least || choice.smallest->memory.total() < least->memory.total()) least = choice.smallest;
    if (!choice.best.empty()) plans.push_back({std::move(choice.best[0]), 0});
  }
  const std::optional<std::size_t> best_way = fastest_way(plans);
  const RankPlan* const best = best_way ? &plans[*best_way] : nullptr;
  if (!best)
    fail_user(
        "train.batch_size = \"auto\": nothing fits into {}: even {} with parallel.mode = \"{}\"; start more ranks, or "
        "make the model smaller",
        room_in_words(config, machine), rank_needs(*least, config, machine), name_of(least->mode));
  AutoBatch result;
  result.rows_before = setting_of(config).rows();
  Trial& row = result.tried.emplace_back();
  row.name = in_words(best->setting);
  row.setting = best->setting;
  row.expected = best->expected.tokens_per_s;
  row.state = TrialState::planned;
  result.config = with_setting(config, best->setting);
  return result;
}

}  // namespace redline::perf
