// Ways to cut a step's rows into equal micro-batches are planned, and those that fit are ordered by the step expected
// of them. The best few run one after the other; each frees its memory before the next.
#include "perf/batch_size.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shards.h"
#include "base/words.h"
#include "config/load.h"
#include "device/device.h"
#include "model/lowering.h"
#include "perf/fp8_choice.h"
#include "perf/profile.h"
#include "train/memory_advice.h"
#include "train/on_ranks.h"

namespace redline::perf {
namespace {

// Other rows than asked for must be worth it: so much faster than the best way that keeps them.
constexpr double kWorthChanging = 1.1;

constexpr std::int64_t kMostMicroBatches = 1 << 20;  // that train.accumulate takes

// Ways to cut a step's rows into micro-batches that a program can be lowered for. Recompute is open.
class Cuts {
 public:
  explicit Cuts(const config::Config& c) : own_(setting_of(c)), rows_(own_.rows()), most_(model::most_rows(c)) {}

  // Every size that divides the rows.
  std::vector<Setting> exact() const {
    constexpr std::int64_t kMany = 4096;
    std::vector<Setting> cuts;
    for (std::int64_t n = 1; n <= std::min(rows_, kMany); ++n)
      if (rows_ % n == 0) add(cuts, rows_ / n, n);
    for (std::int64_t batch = std::min(rows_ / (kMany + 1), kMany); batch >= 1; --batch)  // in more than so many pieces
      if (rows_ % batch == 0) add(cuts, batch, rows_ / batch);
    if (cuts.empty()) cuts.push_back(own_);  // more rows than any of these ways can have
    return cuts;
  }

  // For each small number of micro-batches the size that comes nearest to the rows.
  std::vector<Setting> near() const {
    constexpr std::int64_t kFew = 64;
    std::vector<Setting> cuts;
    for (std::int64_t n = 2; n <= std::min(rows_, kFew); ++n)
      if (rows_ % n != 0) add(cuts, (rows_ + n / 2) / n, n);
    return cuts;
  }

 private:
  void add(std::vector<Setting>& to, std::int64_t batch, std::int64_t accumulate) const {
    if (batch <= most_ && accumulate <= kMostMicroBatches) to.push_back({batch, accumulate, own_.recompute});
  }
  Setting own_;
  std::int64_t rows_, most_;
};

bool is_recompute_set(const config::Config& config) {
  return config.train.recompute != "auto" && !config.origins.prefix({"train.recompute"}).empty();
}

void sort_by_rate(std::vector<Plan>& plans) {
  std::ranges::stable_sort(
      plans, [](const Plan& a, const Plan& b) { return a.expected.tokens_per_s > b.expected.tokens_per_s; });
}

}  // namespace

namespace {

// The search among ways to cut a step's rows, for each kind of recompute by itself.
class CutSearch {
 public:
  CutSearch(Choice& choice, const Machine& machine, const SearchOptions& options, const Spread& spread)
      : choice_(choice), machine_(machine), options_(options), spread_(spread), search_(options) {}

  // Settings that fit, fastest first. `cuts` have ever fewer rows a micro-batch.
  std::vector<Plan> fitting(const std::vector<Setting>& cuts, const std::vector<std::string>& recomputes) {
    std::vector<Plan> plans;
    bool everything = false;  // all rows at once, and nothing is computed again: no other setting is as fast
    for (const std::string& recompute : recomputes) {
      choice_.considered += cuts.size();
      if (everything)
        choice_.fitting += cuts.size();  // they keep less
      else
        everything = add_fitting(plans, cuts, recompute) && recompute == "none";
    }
    sort_by_rate(plans);
    return plans;
  }

  // The setting with the rows of another one that keeps everything, where that does not fit.
  void plan_kept(Setting setting) {
    setting.recompute = "none";
    for (const Plan& p : choice_.too_large)
      if (p.setting == setting) return;
    if (Plan p = plan(setting); !p.fits) choice_.too_large.push_back(std::move(p));
  }

 private:
  // Returns whether the first of them fits.
  bool add_fitting(std::vector<Plan>& plans, const std::vector<Setting>& cuts, const std::string& recompute) {
    std::map<std::size_t, Plan> planned;
    const auto fits = [&](std::size_t i) {
      const auto [at, fresh] = planned.try_emplace(i);
      if (fresh) {
        Setting setting = cuts[i];
        setting.recompute = recompute;
        at->second = plan(setting);
      }
      return at->second.fits;
    };
    std::size_t first = cuts.size();  // of those that fit
    if (fits(cuts.size() - 1)) {
      std::size_t low = 0;
      for (first = cuts.size() - 1; low < first;) {
        const std::size_t middle = (low + first) / 2;
        if (fits(middle))
          first = middle;
        else
          low = middle + 1;
      }
      for (std::size_t i = first; i < std::min(cuts.size(), first + 1 + options_.runners_up); ++i) fits(i);
    }
    choice_.fitting += cuts.size() - first;
    for (auto& [i, p] : planned) {
      if (!choice_.smallest || p.memory.total() < choice_.smallest->memory.total()) choice_.smallest = p;
      (p.fits ? plans : choice_.too_large).push_back(std::move(p));
    }
    return first == 0;
  }

  Plan plan(const Setting& setting) {
    search_.begin(in_words(setting));
    const config::Config config = with_setting(choice_.config, setting);
    Plan p = make_plan(config, machine_, spread_, options_.filling);
    if (p.fits || spread_.ranks > 1) return p;
    const std::optional<config::Config> without = without_unread_copies(config, machine_.kind);
    if (!without) return p;
    Plan other = make_plan(*without, machine_, spread_, options_.filling);
    return other.fits ? other : p;
  }

  Choice& choice_;
  const Machine& machine_;
  const SearchOptions& options_;
  const Spread& spread_;
  Search search_;
};

}  // namespace

Choice choose(const config::Config& config, const Machine& machine, const SearchOptions& options,
              const Spread& spread) {
  std::vector<std::string> recomputes = {"none", "mlp", "block"};
  if (is_recompute_set(config) && !options.any_recompute) recomputes = {config.train.recompute};

  Choice choice;
  choice.config = config;
  CutSearch search(choice, machine, options, spread);
  const Cuts cuts(config);
  choice.best = search.fitting(cuts.exact(), recomputes);
  if (choice.best.empty()) return choice;
  const auto is_good = [&](const Setting& s) {
    return s.accumulate == 1 || s.batch_size * config.train.seq_len >= kEnoughTokens;
  };
  if (const std::vector<Setting> near = cuts.near(); !near.empty() && !is_good(choice.best[0].setting)) {
    std::vector<Plan> others = search.fitting(near, recomputes);
    choice.changed =
        !others.empty() && others[0].expected.tokens_per_s > kWorthChanging * choice.best[0].expected.tokens_per_s;
    if (choice.changed) choice.best = std::move(others);
  }
  if (choice.best[0].setting.recompute != "none" && recomputes.size() > 1) search.plan_kept(choice.best[0].setting);
  return choice;
}

namespace {

// The most rows of a micro-batch that keep within a share of the memory, by halving: memory grows with the rows. At
// least `low`, which keeps within it.
std::int64_t most_rows_within(double share, const config::Config& config, const Machine& machine, std::int64_t low) {
  const Setting own = setting_of(config);
  const auto within = [&](std::int64_t rows) {
    const Plan p = make_plan(with_setting(config, {rows, own.accumulate, own.recompute}), machine);
    return p.fits && static_cast<double>(p.memory.total()) <= share * static_cast<double>(machine.memory);
  };
  const std::int64_t most = model::most_rows(config);
  std::int64_t beyond = low;
  while (beyond <= most && within(beyond)) low = std::exchange(beyond, 2 * beyond);
  beyond = std::min(beyond, most + 1);
  while (beyond - low > 1) {
    const std::int64_t middle = low + (beyond - low) / 2;
    (within(middle) ? low : beyond) = middle;
  }
  return low;
}

}  // namespace

Growth grow(const config::Config& config, const Machine& machine, const SearchOptions& options) {
  const Setting own = setting_of(config);
  Growth g;
  const auto plan = [&](std::int64_t rows) {
    return make_plan(with_setting(config, {rows, own.accumulate, own.recompute}), machine, {}, options.filling);
  };
  for (const double times : {1.0, 1.5, 2.0, 3.0}) {
    const auto rows = static_cast<std::int64_t>(std::llround(times * static_cast<double>(own.batch_size)));
    if (rows > model::most_rows(config)) break;
    if (g.rows.empty() || rows > g.rows.back().setting.batch_size) g.rows.push_back(plan(rows));
  }
  const Plan one = plan(1);
  if (!one.fits || static_cast<double>(one.memory.total()) > kMostFilled * static_cast<double>(machine.memory))
    return g;
  g.filling = plan(most_rows_within(kMostFilled, config, machine, 1));
  return g;
}

Plan least_plan(const config::Config& config, const Machine& machine, const Spread& spread) {
  Setting least = Cuts(config).exact().back();
  least.recompute = "block";
  return make_plan(with_setting(config, least), machine, spread);
}

int fewest_ranks(const config::Config& asked, const Machine& machine) {
  config::Config config = asked;
  config.parallel.shards = 0;  // else more of them hold no more
  const std::vector<Mode> modes = train::modes_for(config, 2);
  if (modes.empty()) return 0;
  const auto holds = [&](int power) {
    return least_plan(config, machine, {.mode = modes.back(), .ranks = 1 << power}).fits;
  };
  int low = std::max(1, std::countr_zero(static_cast<std::uint64_t>(config.parallel.sequence)));
  int high = 10;  // of kCutGroups ranks at most
  static_assert(1 << 10 == kCutGroups);
  if (!holds(high)) return 0;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (holds(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return 1 << high;
}

std::vector<config::Config> relaxed_ways(const config::Config& config) {
  std::vector<config::Config> ways;
  if (is_recompute_set(config)) ways.push_back(config);
  for (config::Config& way : train::relaxations(config)) ways.push_back(std::move(way));
  return ways;
}

Plan least_moved(const config::Config& config, const Setting& setting, const Machine& machine, const Spread& spread) {
  config::Config c = with_setting(config, setting);
  const dist::Sharing sharing = dist::sharing_of(config.parallel, 0, spread.ranks, spread.mode);
  std::optional<Plan> least;
  for (const config::Placement& placement : train::leanest(as_possible(c, machine), machine.kind, sharing))
    for (const bool again : {false, true}) {
      c.memory.placement = placement;
      if (again && c.model.layers == 1) continue;
      if (again) {
        c.memory.placement.residuals = true;
        c.memory.placement.recompute = "block";
        c.memory.placement.recompute_layers = c.model.layers - 1;
      }
      Plan plan = make_plan(c, machine, spread);
      if (!least || plan.memory.total() < least->memory.total()) least = std::move(plan);
    }
  return std::move(*least);
}

Choice choose_or_relax(const config::Config& config, const Machine& machine, const SearchOptions& options) {
  Choice asked = choose(config, machine, options);
  if (!asked.best.empty()) return asked;
  asked.asked_for = asked.smallest;
  SearchOptions open = options;
  open.any_recompute = true;
  std::vector<config::Config> ways = relaxed_ways(config);
  if (!ways.empty() && !least_plan(ways.back(), machine).fits) ways.erase(ways.begin(), ways.end() - 1);
  for (const config::Config& way : ways) {
    // One plan tells whether there is anything to be found.
    Plan least = least_plan(way, machine);
    if (least.fits) {
      Choice found = choose(way, machine, open);
      if (found.best.empty()) continue;
      found.asked_for = std::move(asked.asked_for);
      found.relaxed = train::changed_keys(config, way);
      std::erase_if(found.relaxed, [](const std::string& key) { return key.starts_with("train.accumulate"); });
      return found;
    }
    if (least.memory.total() < asked.smallest->memory.total()) {
      asked.smallest = std::move(least);
      asked.config = way;
    }
  }
  if (config.memory.fit == "auto") asked.least_moved = least_moved(asked.config, asked.smallest->setting, machine);
  asked.enough_gpus = fewest_ranks(config, machine);
  if (asked.enough_gpus == 0) asked.enough_gpus = fewest_ranks(asked.config, machine);
  return asked;
}

namespace {

bool is_limited(const config::Config& config, const Machine& machine) {
  return config::bytes_of_amount(config.memory.limit) < machine.memory;
}

}  // namespace

std::string room_in_words(const config::Config& config, const Machine& machine) {
  if (is_limited(config, machine)) return fmt::format("memory.limit = {}", config.memory.limit);
  return train::memory_in_words(machine.memory);
}

std::string needs_in_words(const Plan& p, const config::Config& config, const Machine& machine) {
  return train::enough_in_words(is_limited(config, machine) ? p.memory.arena : p.memory.total());
}

std::string moved_in_words(const std::optional<Plan>& moved, const Plan& least, const config::Config& config,
                           const Machine& machine) {
  if (!moved || moved->memory.total() >= least.memory.total()) return "";
  return fmt::format(", and {} with all that can lie in the host's memory there",
                     needs_in_words(*moved, config, machine));
}

std::vector<std::string> keys_to_set(const Choice& choice, const Setting& setting) {
  std::vector<std::string> keys = over(choice.relaxed, keys_of(setting));
  keys.push_back(fmt::format("train.recompute={}", setting.recompute));
  const config::Config set = with_setting(choice.config, setting);
  if (set.train.accumulate_from != choice.config.train.accumulate_from || !choice.relaxed.empty())
    if (set.train.accumulate_from > 0)
      keys.push_back(fmt::format("train.accumulate_from={}", set.train.accumulate_from));
  if (set.optim.lr != choice.config.optim.lr) {
    keys.push_back(fmt::format("optim.lr={:g}", set.optim.lr));
    keys.push_back(fmt::format("optim.min_lr={:g}", set.optim.min_lr));
  }
  return keys;
}

namespace {

std::string why_nothing_fits(const Choice& choice, const Machine& machine, const std::vector<std::string>& others) {
  const Plan& least = choice.smallest.value();
  if (machine.memory <= machine.in_context)
    return fmt::format("nothing fits into {}: the driver's context alone takes {}; take a device with more memory",
                       room_in_words(choice.config, machine), train::memory_in_words(machine.in_context));
  std::string text = fmt::format(
      "nothing fits into {}: even {} of {} with train.recompute = \"{}\" and optim.moments = \"{}\" needs "
      "{}{}; ",
      room_in_words(choice.config, machine), counted(least.setting.batch_size, "row"),
      counted(choice.config.train.seq_len, "token"), least.setting.recompute, choice.config.optim.moments,
      needs_in_words(least, choice.config, machine), moved_in_words(choice.least_moved, least, choice.config, machine));
  for (const std::string& other : others) text += other + "; ";
  if (!choice.asked_for) return text + "`redline plan` looks for what would";
  if (const train::NotOnRanks* const no = train::refused_by(choice.config, Mode::fsdp); no && choice.enough_gpus == 0)
    return text +
           fmt::format("several GPUs share a run's state only without {}: plan without it, or make the model smaller",
                       no->setting);
  if (choice.enough_gpus == 0)
    return text +
           (others.empty() ? "no number of GPUs mends that: make the model smaller" : "or make the model smaller");
  return text + fmt::format(
                    "{} hold it with parallel.mode = \"fsdp\" (redline plan --gpus {}), or make the model "
                    "smaller",
                    counted(choice.enough_gpus, "GPU"), choice.enough_gpus);
}

}  // namespace

std::string why(const Choice& choice, const Machine& machine, const std::vector<std::string>& others) {
  if (choice.best.empty()) return why_nothing_fits(choice, machine, others);
  const Setting& chosen = choice.best[0].setting;
  std::string text;
  if (choice.asked_for) {
    const Plan& least = *choice.asked_for;
    text = fmt::format("as it was asked for nothing fits: even {} with train.recompute = \"{}\" needs {}; ",
                       counted(least.setting.batch_size, "row"), least.setting.recompute,
                       needs_in_words(least, choice.config, machine));
    if (!choice.relaxed.empty()) text += fmt::format("with {} ", fmt::join(choice.relaxed, " "));
  }
  text += fmt::format("{} of {} fit into {}; of them this is the fastest", choice.fitting,
                      counted(choice.considered, "setting"), room_in_words(choice.config, machine));
  if (chosen.accumulate == 1) text += ": one micro-batch moves weights and gradients once a step";
  // The least that would have been asked for more: everything kept, or the next larger micro-batch.
  const Plan *kept = nullptr, *larger = nullptr;
  for (const Plan& p : choice.too_large) {
    if (p.setting.batch_size == chosen.batch_size && p.setting.recompute == "none") kept = &p;
    if (p.setting.recompute != chosen.recompute || p.setting.batch_size <= chosen.batch_size) continue;
    if (!larger || p.setting.batch_size < larger->setting.batch_size) larger = &p;
  }
  if (kept) text += fmt::format("; keeping everything would need {}", needs_in_words(*kept, choice.config, machine));
  if (larger)
    text += fmt::format("; {} would need {}", counted(larger->setting.batch_size, "row"),
                        needs_in_words(*larger, choice.config, machine));
  if (choice.changed) text += "; no size that divides the rows of a step comes near it";
  return text;
}

namespace {

constexpr std::size_t kCandidates = 3;
constexpr double kHopeless = 0.8;  // of the best one's expected rate: a plan is not that wrong (docs/results.md)
constexpr std::int64_t kTimedMicroBatches = 3;
constexpr int kRounds = 3;

// Time of a step without the wait for batches, from steps of one micro-batch and of a few: all micro-batches but the
// first take the same time. The best of a few rounds is taken, since little time is spent on each candidate.
double seconds_of_a_step(const config::Config& config, device::Device& device, const StopFlag* stop) {
  const std::int64_t all = config.train.accumulate, few = std::min(all, kTimedMicroBatches);
  Steps steps(config, device, stop);
  std::int64_t index = 0;
  const auto run = [&](std::int64_t micro_batches) {
    const StepTimes t = steps.step(index++, micro_batches);
    return t.seconds - t.waited;
  };
  run(few);                           // products are tuned, attention is chosen
  if (device.runs_ahead()) run(few);  // graphs are replayed from here on
  double one = std::numeric_limits<double>::infinity(), several = one;
  for (int round = 0; round < kRounds; ++round) {
    one = std::min(one, run(1));
    if (few > 1) several = std::min(several, run(few));
  }
  if (few == 1) return one;
  return one + static_cast<double>(all - 1) * std::max(0.0, several - one) / static_cast<double>(few - 1);
}

// Takes fp8 for every product that the card can compute. Once the batch is known, the products that are worth it are
// found.
config::Config as_measured(const config::Config& config, device::Device& device) {
  if (config.precision.matmul != "fp8" || device.kind() == device::Kind::cpu) return config;
  return take_possible(config, model::fp8_products(config).taken, time_on_card(device)).config;
}

// The rest stay as they were planned where a signal ends it.
void measure_all(std::vector<Trial>& rows, const config::Config& asked, device::Device& device,
                 const SearchOptions& options) {
  Bench bench;
  bench.kind = device.kind();
  bench.measure = [&](const config::Config& config, double) {  // a few steps have to do, however long they take
    Measured m;
    try {
      const double seconds = seconds_of_a_step(config, device, options.stop);
      m.step_ms = 1e3 * seconds;
      m.tokens_per_s = static_cast<double>(setting_of(config).rows() * config.train.seq_len) / seconds;
    } catch (const MachineError& e) {  // it did not fit after all; the next one is smaller or computes more again
      m.problem = e.what();
    }
    return m;
  };
  Search search(options, bench);
  search.expect(rows.size());
  const config::Config config = as_measured(asked, device);
  try {
    const Machine machine = machine_now(device);
    for (Trial& row : rows) search.measure(row, as_it_fits_by_itself(with_setting(config, row.setting), machine));
  } catch (const Interrupted&) {
  }
}

}  // namespace

std::string changes_that_fit(const config::Config& config, const Machine& machine, const Room& room) {
  const std::vector<config::Config> ways = train::relaxations_with_types(config, machine.kind);
  // A search takes many plans; one or two say whether it can help.
  const auto could = [&](const config::Config& way) {
    const Plan least = least_plan(way, machine);
    return least.fits || (chooses(way) && least_moved(way, least.setting, machine).fits);
  };
  if (ways.empty() || !could(ways.back())) return "";  // all of them together need least
  for (const config::Config& way : ways) {
    if (!could(way)) continue;
    const std::optional<MovedCut> cut = cut_that_moves(way, machine, room);
    if (!cut && chooses(way)) continue;
    const Setting found = cut ? cut->setting : least_plan(way, machine).setting;
    return fmt::format("{} would fit", fmt::join(train::changed_keys(config, with_setting(way, found)), " "));
  }
  return "";
}

Machine machine_now(device::Device& device) {
  Machine m = machine_of(device);
  m.memory = device.available_bytes();
  if (m.kind == device::Kind::cuda) m.memory += m.in_context;
  return m;
}

AutoBatch find_batch_size(const config::Config& config, device::Device& device, const AutoBatchOptions& options) {
  const Machine machine = machine_now(device);
  const Choice choice = choose_or_relax(config, machine);
  if (choice.best.empty() || choice.asked_for)
    if (const std::optional<MovedCut> moved = cut_that_moves(config, machine, room_on(config, device, 1))) {
      Trial row;
      row.name = in_words(moved->setting);
      row.setting = moved->setting;
      row.expected = static_cast<double>(setting_of(config).rows() * config.train.seq_len) / moved->fit.seconds();
      row.state = TrialState::planned;
      return {.config = with_setting(config, row.setting), .tried = {row}, .rows_before = setting_of(config).rows()};
    }
  if (choice.best.empty()) {
    const Room room = room_on(config, device, 1);
    std::vector<std::string> others;
    if (const auto need = host_needed(config, machine, room)) others.push_back(in_words(*need, config, room));
    if (std::string s = changes_that_fit(config, machine, room); !s.empty()) others.push_back(std::move(s));
    fail_user("train.batch_size = \"auto\": {}", why(choice, machine, others));
  }
  if (choice.asked_for)  // which is the user's to decide
    fail_user(
        "train.batch_size = \"auto\": nothing fits into {}: even {} with train.recompute = \"{}\" needs "
        "{}; {} would fit",
        room_in_words(config, machine), counted(choice.asked_for->setting.batch_size, "row"),
        choice.asked_for->setting.recompute, needs_in_words(*choice.asked_for, config, machine),
        fmt::join(keys_to_set(choice, choice.best[0].setting), " "));

  AutoBatch result;
  result.rows_before = setting_of(config).rows();
  for (const Plan& p : choice.best) {
    if (result.tried.size() == kCandidates) break;
    if (p.expected.tokens_per_s < kHopeless * choice.best[0].expected.tokens_per_s) break;
    Trial& row = result.tried.emplace_back();
    row.name = in_words(p.setting);
    row.setting = p.setting;
    row.expected = p.expected.tokens_per_s;
    row.state = TrialState::planned;
  }
  if (options.measure && result.tried.size() > 1) measure_all(result.tried, config, device, options.search);
  const auto failed = [](const Trial& t) { return t.state == TrialState::failed; };
  if (std::ranges::all_of(result.tried, failed)) throw MachineError(result.tried[0].measured.problem);
  std::ranges::stable_sort(result.tried, [&](const Trial& a, const Trial& b) {
    if (failed(a) != failed(b)) return failed(b);
    return a.measured.tokens_per_s > b.measured.tokens_per_s;
  });
  result.config = with_setting(config, result.tried[0].setting);
  return result;
}

config::Config adopt_batch_size(const config::Config& config, const config::Config& run) {
  Setting s = setting_of(run);
  if (is_recompute_set(config)) s.recompute = config.train.recompute;
  return with_setting(config, s);
}

}  // namespace redline::perf
