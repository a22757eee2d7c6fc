// Lowers the configuration with more and more of it elsewhere, and keeps what fits.
#include "perf/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "base/words.h"
#include "config/load.h"
#include "model/lowering.h"
#include "perf/walk.h"
#include "train/memory_advice.h"

namespace redline::perf {
namespace {

// Each keeps less than the one before, or computes less.
constexpr std::string_view kKinds[] = {"mlp", "rest", "block"};

struct WayBytes {
  std::int64_t device = 0, host = 0, persistent = 0;
  void take_larger(const WayBytes& o) {
    device = std::max(device, o.device), host = std::max(host, o.host), persistent = std::max(persistent, o.persistent);
  }
};
WayBytes bytes_of(const program::MemoryPlan& memory) {
  return {memory.device.total, memory.host.beyond_results(), memory.device.persistent};
}
// Bytes of the ways of a run, which are the same on all cards: whoever plans for many of them lowers the steps of a
// search once. A few runs are remembered, the last ones.
class KnownBytes {
 public:
  static KnownBytes& all() {
    static KnownBytes known;
    return known;
  }
  std::optional<WayBytes> find(const config::Config& run, device::Kind kind, const dist::Sharing& sharing,
                               const config::Placement& placement) {
    const std::lock_guard lock(mutex_);
    for (const Way& way : of(run, kind, sharing).ways)
      if (way.placement == placement) return way.bytes;
    return {};
  }
  void add(const config::Config& run, device::Kind kind, const dist::Sharing& sharing,
           const config::Placement& placement, const WayBytes& bytes) {
    const std::lock_guard lock(mutex_);
    of(run, kind, sharing).ways.push_back({placement, bytes});
  }

 private:
  static constexpr std::size_t kRuns = 16;
  struct Way {
    config::Placement placement;
    WayBytes bytes;
  };
  struct Run {
    config::Config config;
    device::Kind kind;
    dist::Sharing sharing;
    std::vector<Way> ways = {};
  };
  Run& of(const config::Config& config, device::Kind kind, const dist::Sharing& sharing) {
    for (Run& run : runs_)
      if (run.kind == kind && run.sharing == sharing && run.config == config) return run;
    if (runs_.size() == kRuns) runs_.pop_front();
    return runs_.emplace_back(Run{config, kind, sharing});
  }

  std::mutex mutex_;
  std::deque<Run> runs_;
};

class Solver {
 public:
  Solver(const config::Config& config, const Machine& machine, const Room& room, const dist::Sharing& sharing,
         const Filling& filling)
      : config_(as_possible(config, machine)), machine_(machine), room_(room), sharing_(sharing), filling_(filling) {
    config_.memory.placement = {};
  }

  // A walk is of one rank or two; those that need most with all on the host are looked at as well. Where another one
  // needs more for what was found, more is left free.
  Fit solve() {
    const Room room = room_;
    const FitWay asked = of_all_ranks(way({}));
    if (!sharing_.alone() && !room.holds(asked.device, asked.host)) find_beside();
    while (true) {
      Fit fit = solve_for_walked(asked);
      fit.room = room;
      if (fit.ways.empty()) return fit;
      const FitWay best = fit.ways[0] = of_all_ranks(fit.ways[0]);
      if (room.holds(best.device, best.host)) return fit;
      room_.device -= std::max<std::int64_t>(best.device - room.device, 0);
      room_.host -= std::max<std::int64_t>(best.host - room.host, 0);
      const std::int64_t over = std::max<std::int64_t>(best.device + best.host - room.together, 0);
      if (room.together > 0) room_.together = std::max<std::int64_t>(room_.together - over, 1);  // 0 were no limit
    }
  }

 private:
  Fit solve_for_walked(const FitWay& asked) {
    Fit fit{.room = room_, .asked = asked};
    fit.fits = room_.holds(fit.asked.device, fit.asked.host);
    if (fit.fits) return fit;
    const std::vector<config::Placement> all = train::placements(config_, machine_.kind, sharing_);
    if (room_.together > 0 && least_wherever(fit.asked, all) > room_.together) return fit;
    if (std::ranges::none_of(train::leanest(config_, machine_.kind, sharing_),
                             [&](const config::Placement& p) { return bytes(p).persistent <= room_.device; }))
      return fit;  // nothing else could help
    pool_.run(std::ssize(all), [&](std::int64_t i) { way(all[static_cast<std::size_t>(i)]); });
    for (const config::Placement& on_host : all) {
      if (has_less_of(fit, on_host)) continue;
      FitWay least = on_host == config::Placement{} ? fit.asked : way(on_host);  // what is computed again takes longer
      if (const auto some = with_fewest_moments(least, second_best(fit))) least = *some;
      if (second_best(fit) <= least.seconds) continue;
      if (fits(least)) {
        add(fit, least);
        continue;
      }
      if (least.host > room_.host) {
        const std::optional<FitWay> some = with_most_moments(least);
        if (!some) continue;
        least = *some;
      }
      if (least.persistent > room_.device) continue;
      std::vector<config::Placement> again;
      for (const std::string_view kind : kKinds) again.emplace_back(least.placement).recompute = kind;
      for (const std::string_view kind : {"rest", "block"}) {
        if (!moves()) break;
        again.push_back(least.placement);
        again.back().recompute = kind;
        again.back().residuals = true;
      }
      std::vector<std::optional<FitWay>> found(again.size());  // beside each other: a start waits for them
      pool_.run(std::ssize(again), [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        // The last layer has nothing to gain.
        found[at] = with_fewest(least, again[at], &config::Placement::recompute_layers, config_.model.layers - 1);
      });
      for (const std::optional<FitWay>& each : found)
        if (each) add(fit, *each);
      if (!moves()) break;
    }
    return fit;
  }

  model::LoweringOptions options_of(const config::Placement& placement, int rank = 0) const {
    config::Config c = config_;
    c.memory.placement = placement;
    model::LoweringOptions options = model::lowering_options(c, machine_.kind);
    options.sharing = sharing_;
    options.sharing.rank = rank;
    return options;
  }
  WayBytes bytes_of_rank(const config::Placement& placement, int rank) const {
    return bytes_of(model::lower(config_.model, options_of(placement, rank)).set.memory);
  }
  // Of each of the ranks that could need most.
  std::vector<std::pair<int, WayBytes>> bytes_of_ranks(const config::Placement& placement) {
    std::vector<std::pair<int, WayBytes>> of;
    for (const int rank : model::fullest_ranks(config_.model, options_of(placement))) of.push_back({rank, {}});
    if (of.size() == 1) return {};  // that of the walk
    pool_.run(std::ssize(of), [&](std::int64_t i) {
      auto& [rank, bytes] = of[static_cast<std::size_t>(i)];
      bytes = bytes_of_rank(placement, rank);
    });
    return of;
  }
  // With the bytes of whichever rank needs most.
  FitWay of_all_ranks(FitWay way) {
    WayBytes most{way.device, way.host, way.persistent};
    for (const auto& [rank, bytes] : bytes_of_ranks(way.placement)) most.take_larger(bytes);
    way.device = most.device, way.host = most.host, way.persistent = most.persistent;
    return way;
  }
  void find_beside() {
    const model::LargestRanks walked = model::largest_ranks(config_.model, options_of({}));
    for (const config::Placement& lean : train::leanest(config_, machine_.kind, sharing_)) {
      const std::vector<std::pair<int, WayBytes>> of = bytes_of_ranks(lean);
      const auto most = std::ranges::max_element(of, {}, [](const auto& each) { return each.second.device; });
      if (most != of.end() && most->first != walked.by_memory && most->first != walked.by_update)
        beside_.insert(most->first);
    }
  }

  FitWay way(const config::Placement& placement) const {
    {
      const std::lock_guard lock(mutex_);
      const auto seen = std::ranges::find(seen_, placement, &FitWay::placement);
      if (seen != seen_.end()) return *seen;
    }
    config::Config c = config_;
    c.memory.placement = placement;
    const StepWalk step(c, machine_, {.mode = sharing_.mode, .ranks = sharing_.ranks}, filling_);
    WayBytes most = bytes_of(step.lowered()->set.memory);
    most.take_larger(bytes_of(step.of_slowest()->set.memory));
    for (const int rank : beside_) most.take_larger(bytes_of_rank(placement, rank));
    const std::lock_guard lock(mutex_);
    seen_.push_back({placement, most.device, most.host, step.times().total(), most.persistent});
    return seen_.back();
  }
  // Without its time, which a search does not ask for.
  WayBytes bytes(const config::Placement& placement) const {
    KnownBytes& known = KnownBytes::all();
    if (const auto found = known.find(config_, machine_.kind, sharing_, placement)) return *found;
    const FitWay made = way(placement);
    const WayBytes bytes{made.device, made.host, made.persistent};
    known.add(config_, machine_.kind, sharing_, placement, bytes);
    return bytes;
  }
  bool fits(const auto& way) const { return room_.holds(way.device, way.host); }
  static double second_best(const Fit& fit) {
    return fit.ways.size() > 1 ? fit.ways[1].seconds : std::numeric_limits<double>::infinity();
  }
  // Whether copies that are made are enough by themselves, and this moves bytes beside that.
  static bool has_less_of(const Fit& fit, const config::Placement& more) {
    return more.copies && more.on_host() &&
           std::ranges::count(fit.ways, config::Placement{.copies = true}, &FitWay::placement) > 0;
  }
  // Of several ways to the same placement one counts: masters are enough, whatever moments could do beside them.
  static void add(Fit& fit, const FitWay& way) {
    if (std::ranges::count(fit.ways, way.placement, &FitWay::placement) > 0) return;
    fit.ways.insert(std::ranges::upper_bound(fit.ways, way.seconds, {}, &FitWay::seconds), way);
  }

  bool moves() const { return config_.memory.fit == "auto"; }
  // Where moments lie in the host's memory: those of the fewest last layers that have to, unless another way is faster
  // than a run that leaves all of them on the device.
  std::optional<FitWay> with_fewest_moments(const FitWay& all, double faster) const {
    config::Placement placement = all.placement;
    if (!placement.moments || !model::cuts_moments(options_of({}))) return {};
    if (!any_host().holds(all.device, all.host)) return {};
    placement.moments = false;
    const FitWay none = way(placement);
    if (fits(none)) return none;
    if (faster <= none.seconds) return {};
    placement.moments = true;
    return with_fewest(none, placement, &config::Placement::moment_layers, config_.model.layers);
  }

  // Where the host has no room for all moments: of as many last layers as it holds.
  std::optional<FitWay> with_most_moments(const FitWay& all) const {
    config::Placement placement = all.placement;
    if (!placement.moments || placement.moment_layers > 0 || !model::cuts_moments(options_of({}))) return {};
    std::int64_t held = 0, too_many = config_.model.layers + 1;
    while (too_many - held > 1) {
      placement.moment_layers = (held + too_many) / 2;
      (bytes(placement).host <= room_.host ? held : too_many) = placement.moment_layers;
    }
    if (held == 0) return {};
    placement.moment_layers = held;
    return way(placement);
  }

  // What takes memory from step to step, wherever it lies: as asked, or without copies that are made anew.
  std::int64_t least_wherever(const FitWay& asked, const std::vector<config::Placement>& all) const {
    const config::Placement copies{.copies = true};
    return std::ranges::count(all, copies) > 0 ? std::min(asked.persistent, bytes(copies).persistent)
                                               : asked.persistent;
  }

  Room any_host() const {
    Room room = room_;
    room.host = std::numeric_limits<std::int64_t>::max();
    return room;
  }
  // The fewest layers, `most` or less of them, of which something has to be elsewhere or computed again so that the
  // rest fits on the device. Each layer gives back about as much, so that the line through the bytes of the ends says
  // where to look; every third time it is in the middle. The host has least to hold with the fewest: its limit is asked
  // there alone.
  std::optional<FitWay> with_fewest(const FitWay& none, config::Placement placement,
                                    std::int64_t config::Placement::*layers, std::int64_t most_layers) const {
    std::int64_t too_few = 0, enough = most_layers;
    if (enough < 1) return {};
    placement.*layers = enough;
    const Room room = any_host();
    WayBytes found = bytes(placement);
    // All but one may need a little less than all.
    if (enough > 1 && !room.holds(found.device, found.host) && found.device - found.device / 100 <= room.device) {
      placement.*layers = --enough;
      found = bytes(placement);
    }
    if (!room.holds(found.device, found.host)) return {};
    std::int64_t most = none.device, least = found.device;
    const auto look = [&](const WayBytes& there, std::int64_t count) {
      if (room.holds(there.device, there.host))
        enough = count, least = there.device, found = there;
      else
        too_few = count, most = there.device;
    };
    for (std::int64_t count = 1; count < enough; ++count) {  // from searches for other rooms
      placement.*layers = count;
      if (const auto known = KnownBytes::all().find(config_, machine_.kind, sharing_, placement)) look(*known, count);
    }
    for (int turn = 1; enough - too_few > 1; ++turn) {
      const std::int64_t between = enough - too_few, gain = (most - least) / between;
      // A layer less would be over by a fifth of what a layer gives: no need to look.
      if (least + gain * 4 / 5 > room_.device) break;
      const std::int64_t by_bytes = gain > 0 ? (most - room_.device + gain - 1) / gain : 0;
      const std::int64_t further = turn % 3 != 0 && by_bytes > 0 ? by_bytes : between / 2;
      placement.*layers = std::clamp(too_few + further, too_few + 1, enough - 1);
      look(bytes(placement), placement.*layers);
    }
    if (!fits(found)) return {};
    placement.*layers = enough;
    return way(placement);
  }

  config::Config config_;
  const Machine& machine_;
  Room room_;
  dist::Sharing sharing_;
  const Filling& filling_;
  ThreadPool pool_;
  std::set<int> beside_ = {};  // ranks that are looked at beside those of the walk
  mutable std::mutex mutex_;
  mutable std::vector<FitWay> seen_ = {};
};

}  // namespace

Room room_on(const config::Config& config, const device::Device& device, int ranks_here) {
  Room room{
      .device = train::memory_allowed(config, device),
      .host = std::min(device::available_host_bytes() / ranks_here, config::bytes_of_amount(config.memory.host_limit))};
  if (!device.shares_host_memory()) return room;
  room.together = device.available_bytes() / ranks_here;
  room.device = std::min(room.device, room.together);
  return room;
}

Room room_on(const config::Config& config, const Machine& machine) {
  const config::Memory& m = config.memory;
  const std::int64_t left = std::max<std::int64_t>(machine.memory - machine.in_context, 0);
  Room room{.device = std::min(left, config::bytes_of_amount(m.limit)),
            .host = std::min(machine.host_memory, config::bytes_of_amount(m.host_limit))};
  if (machine.kind == device::Kind::cpu) room.together = machine.memory;
  return room;
}

Room least_of(std::span<const Room> rooms) {
  Room least = rooms.front();
  for (const Room& room : rooms)
    least = {std::min(least.device, room.device), std::min(least.host, room.host),
             std::min(least.together, room.together)};
  return least;
}

bool chooses(const config::Config& config) { return config.memory.fit == "auto" || config.train.recompute == "auto"; }

Fit find_fit(const config::Config& config, const Machine& machine, const Room& room, const dist::Sharing& sharing,
             const Filling& filling) {
  return Solver(config, machine, room, sharing, filling).solve();
}

Fit find_fit(const config::Config& config, const Machine& machine) {
  return find_fit(config, machine, room_on(config, machine));
}

std::optional<config::Config> without_unread_copies(const config::Config& config, device::Kind kind) {
  config::Config without = config;
  without.memory.placement.copies = true;
  if (config.memory.fit != "auto" || !model::can_make_copies(config.model, model::lowering_options(without, kind)))
    return {};
  return without;
}

config::Config as_it_fits_by_itself(const config::Config& config, const Machine& machine) {
  const std::optional<config::Config> without = without_unread_copies(config, machine.kind);
  if (!without || train::memory_needed(config, machine.kind) <= room_on(config, machine).device) return config;
  return *without;
}

std::optional<MovedCut> cut_that_moves(const config::Config& config, const Machine& machine, const Room& room,
                                       const dist::Sharing& sharing, const Filling& filling) {
  constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16};
  std::optional<MovedCut> best;
  const Setting own = setting_of(config);
  for (const std::int64_t rows : kRows) {
    if (!chooses(config) || own.rows() % rows != 0 || rows > model::most_rows(config)) continue;
    const Setting setting{rows, own.rows() / rows, config.train.recompute};
    Fit fit = find_fit(with_setting(config, setting), machine, room, sharing, filling);
    if (fit.found() && (!best || fit.seconds() < best->fit.seconds())) best = {setting, std::move(fit)};
  }
  return best;
}

std::optional<HostNeed> host_needed(const config::Config& config, const Machine& machine, const Room& room) {
  Room roomy = room;
  roomy.host = std::numeric_limits<std::int64_t>::max();
  if (config.memory.fit != "auto" || room.host == roomy.host) return {};
  const auto need = [](const Setting& setting, const Fit& fit) {
    return HostNeed{setting, std::ranges::min(fit.ways, {}, &FitWay::host).host};
  };
  if (const Fit fit = find_fit(config, machine, roomy); !fit.ways.empty()) return need(setting_of(config), fit);
  const std::optional<MovedCut> cut = cut_that_moves(config, machine, roomy);
  if (!cut || cut->fit.ways.empty()) return {};
  return need(cut->setting, cut->fit);
}

std::string in_words(const HostNeed& need, const config::Config& config, const Room& room) {
  const config::Config cut = with_setting(config, need.setting);
  return train::more_host_in_words(config, fmt::format("{}", fmt::join(train::changed_keys(config, cut), " ")),
                                   need.bytes, room.host);
}

std::string in_words(const config::Placement& p, const config::Config& config) {
  config::Config c = config;
  c.memory.placement = p;
  std::vector<std::string_view> state;
  const std::string some = p.moment_layers == 1 ? "moments of the last layer"
                                                : fmt::format("moments of the last {} layers", p.moment_layers);
  if (p.moment_layers > 0) state.push_back(some);
  if (p.masters) state.push_back("masters");
  if (p.moments && p.moment_layers == 0) state.push_back("moments");
  if (p.averages) state.push_back("averages");
  if (p.gradients) state.push_back("gradients");
  if (p.weights) state.push_back("weights");
  std::vector<std::string> words;
  if (p.copies)
    words.push_back("weights that training reads in eight bits lose their copies in bf16, which evaluations make anew");
  if (!state.empty()) {
    const std::string_view last = state.back();
    state.pop_back();
    words.push_back(
        fmt::format("{}{}{} lie in the host's memory", fmt::join(state, ", "), state.empty() ? "" : " and ", last));
  }
  if (!p.recompute.empty())
    words.push_back(fmt::format("{} computed again{}", train::what_is_recomputed(c),
                                p.residuals ? ", with what is kept for that in the host's memory" : ""));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string in_words(const Fit& fit, const config::Config& config, std::string_view who) {
  using train::enough_in_words, train::memory_in_words;
  if (fit.fits) return fmt::format("{}: nothing has to move", memory_in_words(fit.asked.device));
  std::string needs = fmt::format("{} needs {}", who, enough_in_words(fit.asked.device));
  if (fit.room.device == 0) return needs + ", and the driver's context alone takes all that there is";
  needs += fmt::format(" of {}", memory_in_words(fit.room.device));
  if (fit.ways.empty()) return needs + ", and no way to move bytes to the host or to compute more again fits";
  const FitWay& best = fit.ways[0];
  const auto cost = [&](const FitWay& way, std::string_view percent) {
    const double times = way.seconds / fit.asked.seconds;
    if (times >= 2) return fmt::format("{:.1f} times as long", times);
    const double slower = 100 * (times - 1);  // what was asked for may compute more again than has to be
    if (slower < -0.05) return fmt::format("{:.1f}% faster", -slower);
    return fmt::format("{:.1f}%{}", std::max(slower, 0.0), percent);
  };
  const std::string host = best.host > 0 ? fmt::format(" and {} of the host's", enough_in_words(best.host)) : "";
  std::string text = fmt::format("{}: {}; {}{}, {} by the plan", needs, in_words(best.placement, config),
                                 enough_in_words(best.device), host, cost(best, " slower"));
  if (fit.ways.size() > 1)
    text += fmt::format(" (next best: {}, {})", in_words(fit.ways[1].placement, config), cost(fit.ways[1], ""));
  return text;
}

std::vector<std::string> gains_of_types(const Fit& fit, const config::Config& config, const Machine& machine,
                                        const Filling& filling) {
  std::vector<std::string> gains;
  if (fit.fits) return gains;
  constexpr double kNotable = 1.005, kManyfold = 2;  // less would be told as 0%
  double fastest = std::numeric_limits<double>::infinity();
  for (const config::Config& coarser : train::coarser_types(config, machine.kind)) {
    const Fit other = find_fit(coarser, machine, fit.room, {}, filling);
    const double before = fit.found() ? fit.seconds() : 0, after = other.found() ? other.seconds() : 0;
    const std::int64_t less = fit.asked.device - other.asked.device;
    const std::vector<std::string> keys = train::changed_keys(config, coarser);
    if (after == 0 || (keys.size() > 1 && after >= fastest)) continue;
    fastest = std::min(fastest, after);
    gains.push_back(fmt::format("{}: {} less, {}", fmt::join(keys, " "), train::memory_in_words(less),
                                before == 0                  ? std::string("and it fits")
                                : before < after * kNotable  ? std::string("no faster")
                                : before < after * kManyfold ? fmt::format("{:.0f}% faster", 100 * (before / after - 1))
                                                             : fmt::format("{:.1f} times as fast", before / after)));
  }
  return gains;
}

std::string place_to_fit(config::Config& config, device::Device& device, const Room& room,
                         const dist::Sharing& sharing) {
  config.memory.placement = {};
  if (!chooses(config)) return "";
  if (room.holds(train::memory_needed(config, device.kind(), sharing), 0)) return "";
  const Fit fit = find_fit(config, machine_of(device), room, sharing);
  if (fit.fits || fit.ways.empty()) return "";
  config.memory.placement = fit.ways[0].placement;
  return fmt::format("{}: {}", config.memory.fit == "auto" ? "memory.fit = auto" : "train.recompute = auto",
                     in_words(fit, config));
}

}  // namespace redline::perf
