// Lowers the configuration again with less to keep, until it fits.
#include "train/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "config/keys.h"
#include "config/load.h"
#include "model/lowering.h"
#include "train/on_ranks.h"

namespace redline::train {
namespace {

constexpr std::int64_t kMostMicroBatches = 1 << 20;  // that train.accumulate takes
constexpr std::int64_t kShortestRow = 128;           // that is worth to be advised

// Each keeps no more than those before it.
constexpr std::array<std::string_view, 3> kRecomputes = {"none", "mlp", "block"}, kMoments = {"fp32", "bf16", "8bit"};

std::span<const std::string_view> from(const std::array<std::string_view, 3>& list, const std::string& first) {
  const auto found = std::ranges::find(list, first);
  return {found == list.end() ? list.begin() : found, list.end()};  // "auto" begins like "none"
}
std::span<const std::string_view> behind(const std::array<std::string_view, 3>& list, const std::string& first) {
  return from(list, first).subspan(1);
}

// What shares rows has several ranks, whatever else is known of them.
bool is_accepted(config::Config config) {
  if (config.parallel.sequence > 1 && modes_for(config, 2).empty()) return false;
  const config::Train& t = config.train;
  const bool endless = t.max_steps == 0 && t.max_tokens == 0 && t.epochs == 0 && t.max_hours == 0;
  if (endless) config.train.max_tokens = 1;  // a plan need not have an end
  try {
    config::resolve(config);
    return config.train.accumulate <= kMostMicroBatches;
  } catch (const UserError&) {
    return false;
  }
}

// Bytes of the ranks that need most: what fits is for all of them.
struct RankBytes {
  std::int64_t device = 0, host = 0;
};
RankBytes memory_of_ranks(const config::Config& config, device::Kind kind, const dist::Sharing& sharing) {
  model::LoweringOptions options = model::lowering_options(config, kind);
  options.sharing = sharing;
  RankBytes most;
  for (const int rank : model::fullest_ranks(config.model, options)) {
    options.sharing.rank = rank;
    const program::MemoryPlan memory = model::lower(config.model, options).set.memory;
    most = {std::max(most.device, memory.device.total), std::max(most.host, memory.host.beyond_results())};
  }
  return most;
}

// Rows of half the length, twice as many micro-batches.
std::optional<config::Config> with_half_rows(config::Config config) {
  config::Train& t = config.train;
  if (t.seq_len % 2 != 0 || t.seq_len / 2 < kShortestRow || !config.data.buckets.empty()) return {};
  t.seq_len /= 2;
  t.accumulate *= 2;
  t.accumulate_from *= 2;
  if (!is_accepted(config)) return {};
  return config;
}

// The search for what fits: a device's memory and the host's, and how ranks share both.
class Room {
 public:
  Room(const config::Config& asked, device::Kind kind, std::int64_t available, const dist::Sharing& sharing,
       int ranks_here)
      : asked_(asked),
        kind_(kind),
        available_(available),
        sharing_(sharing),
        free_host_(device::available_host_bytes() / std::max(ranks_here, 1)),
        host_(std::min(free_host_, config::bytes_of_amount(asked.memory.host_limit))) {}

  std::string advice() const {
    std::vector<std::string> ways;
    const auto take = [&](const std::optional<config::Config>& way, const dist::Sharing& sharing) {
      if (!way || *way == asked_) return false;
      ways.push_back(in_words(*way, sharing));
      return true;
    };
    for (const std::string_view recompute : behind(kRecomputes, asked_.train.recompute))
      if (take(if_fits(with_recompute(asked_, recompute)), sharing_)) break;  // the milder of the two
    take(with_largest_batch(asked_, sharing_), sharing_);
    for (const std::string_view moments : behind(kMoments, asked_.optim.moments))
      if (take(if_fits(with_moments(asked_, moments)), sharing_)) break;
    if (can_share_more()) take(if_fits(shared_most(asked_), all_shared()), all_shared());
    if (!ways.empty()) return fmt::format("{} would fit", fmt::join(ways, " or "));
    const config::Config row = with_rows(asked_, 1);
    if (asked_.train.batch_size > 1 && is_accepted(row))
      if (const std::optional<RankBytes> cut = with_least_on_host(row, sharing_); cut && holds(*cut))
        return in_words(row, *cut);

    std::vector<config::Config> relaxed = relaxations(asked_);
    relaxed.insert(relaxed.begin(), asked_);
    std::string found = relaxed_in_words(relaxed);
    if (found.empty() && !moves()) found = relaxed_in_words(with_types());
    const std::vector<std::string> moved = moved_in_words(found.empty() ? with_types() : std::vector{asked_});
    std::vector<std::string> all = moved;
    if (!found.empty()) all.insert(all.begin(), found);
    return all.empty() ? nothing(with_types()) : fmt::format("{}", fmt::join(all, "; "));
  }

 private:
  std::int64_t needed(const config::Config& config, const dist::Sharing& sharing) const {
    return memory_needed(config, kind_, sharing);
  }
  std::string in_words(const config::Config& way, const dist::Sharing& sharing) const {
    return fmt::format("{} ({})", changes_in_words(asked_, way), enough_in_words(needed(way, sharing)));
  }
  std::optional<config::Config> if_fits(const config::Config& way, const dist::Sharing& sharing) const {
    if (!is_accepted(way) || needed(way, sharing) > available_) return {};
    return way;
  }
  std::optional<config::Config> if_fits(const config::Config& way) const { return if_fits(way, sharing_); }

  static config::Config with_recompute(config::Config config, std::string_view recompute) {
    config.train.recompute = recompute;
    return config;
  }
  static config::Config with_moments(config::Config config, std::string_view moments) {
    config.optim.moments = moments;
    return config;
  }
  static config::Config with_rows(config::Config config, std::int64_t rows) {
    const std::int64_t times = config.train.batch_size / rows;
    config.train.batch_size = rows;
    config.train.accumulate *= times;
    config.train.accumulate_from *= times;
    return config;
  }

  // The largest divisor of the batch that fits, which keeps the tokens of a step; nothing where no row does.
  std::optional<config::Config> with_largest_batch(const config::Config& config, const dist::Sharing& sharing) const {
    if (!if_fits(with_rows(config, 1), sharing)) return {};
    for (std::int64_t rows = config.train.batch_size; rows > 1; --rows)
      if (config.train.batch_size % rows == 0)
        if (auto found = if_fits(with_rows(config, rows), sharing)) return found;
    return with_rows(config, 1);
  }

  bool moves() const { return asked_.memory.fit == "auto"; }

  // Of a configuration with bytes in the host's memory and all but its last layer computed again.
  RankBytes moved(config::Config way, const config::Placement& placement, const dist::Sharing& sharing) const {
    way.memory.placement = placement;
    if (way.model.layers > 1 && (placement.residuals || way.train.recompute != "block")) {
      way.memory.placement.recompute = "block";
      way.memory.placement.recompute_layers = way.model.layers - 1;
    }
    return memory_of_ranks(way, kind_, sharing);
  }
  bool holds(const RankBytes& m) const { return m.device <= available_ && m.host <= host_ && holds_together(m); }
  bool holds_together(const RankBytes& m) const {
    return kind_ != device::Kind::cpu || m.device + m.host <= free_host_;
  }

  // The least of the host's memory with which a configuration fits on the device; nothing: with none, or nothing may
  // move.
  std::optional<RankBytes> with_least_on_host(const config::Config& way, const dist::Sharing& sharing) const {
    if (!moves()) return {};
    std::optional<RankBytes> least;
    config::Placement with;
    const auto look_at = [&](const config::Placement& placement) {
      const RankBytes m = moved(way, placement, sharing);
      const bool fits = m.device <= available_ && holds_together(m);
      if (fits && (!least || m.host < least->host)) least = m, with = placement;
      return fits;
    };
    const auto look = [&](const std::vector<config::Placement>& all) {
      for (config::Placement placement : all)
        for (const bool residuals : {false, true}) {
          placement.residuals = residuals && way.model.layers > 1;
          look_at(placement);
        }
      return least.has_value();
    };
    if (!look(leanest(way, kind_, sharing))) return {};
    look(placements(way, kind_, sharing));
    model::LoweringOptions options = model::lowering_options(way, kind_);
    options.sharing = sharing;
    if (!with.moments || !model::cuts_moments(options)) return least;
    std::int64_t too_few = 0, enough = way.model.layers;  // moments of the fewest layers with which it fits
    for (config::Placement placement = with; enough - too_few > 1;) {
      placement.moment_layers = (too_few + enough) / 2;
      (look_at(placement) ? enough : too_few) = placement.moment_layers;
    }
    return least;
  }
  std::string in_words(const config::Config& way, const RankBytes& m) const {
    if (m.host == 0) return fmt::format("{} would fit", changes_in_words(asked_, way));
    return fmt::format("{} (with {} of the host's memory or more) would fit", changes_in_words(asked_, way),
                       enough_in_words(m.host));
  }

  // The first of some configurations that fits, in rows as many as fit, with nothing in the host's memory.
  std::string relaxed_in_words(const std::vector<config::Config>& relaxed) const {
    for (const config::Config& way : relaxed)
      for (const std::string_view recompute : from(kRecomputes, asked_.train.recompute))
        if (const auto found = with_largest_batch(with_recompute(way, recompute), sharing_))
          return fmt::format("{} would fit", in_words(*found, sharing_));
    if (can_share_more())
      for (const config::Config& way : relaxed)
        if (const auto found = with_largest_batch(with_recompute(shared_most(way), "block"), most_shared()))
          return fmt::format("{} would fit", in_words(*found, most_shared()));
    return "";
  }

  // The first of them that fits with bytes in the host's memory, and the first that would if it had more. The run as
  // asked in single rows is none of the former: whoever asks has tried it.
  std::vector<std::string> moved_in_words(const std::vector<config::Config>& ways) const {
    std::string more;
    for (const config::Config& asked : ways) {
      const config::Config way = with_rows(shared_most(asked), 1);
      const std::optional<RankBytes> m = is_accepted(way) ? with_least_on_host(way, most_shared()) : std::nullopt;
      if (!m) continue;
      if (way == asked_ && holds(*m)) continue;
      if (holds(*m)) return more.empty() ? std::vector{in_words(way, *m)} : std::vector{in_words(way, *m), more};
      if (more.empty()) more = more_host_in_words(asked_, changes_in_words(asked_, way), m->host, host_);
    }
    return more.empty() ? std::vector<std::string>{} : std::vector{more};
  }

  std::vector<config::Config> with_types() const {
    std::vector<config::Config> all = relaxations_with_types(asked_, kind_, most_shared());
    all.insert(all.begin(), asked_);
    return all;
  }

  bool can_share_more() const {
    return !sharing_.alone() && (sharing_.mode != dist::Mode::fsdp || sharing_.copies() > 1) &&
           refusal(asked_, dist::Mode::fsdp).empty();
  }
  dist::Sharing all_shared() const {
    dist::Sharing sharing = sharing_;
    sharing.mode = dist::Mode::fsdp;
    sharing.shards = 0;
    return sharing;
  }
  dist::Sharing most_shared() const { return can_share_more() ? all_shared() : sharing_; }
  config::Config shared_most(config::Config config) const {
    if (!can_share_more()) return config;
    config.parallel.mode = "fsdp";
    config.parallel.shards = 0;
    return config;
  }

  std::string nothing(const std::vector<config::Config>& relaxed) const {
    std::optional<config::Config> least;
    std::int64_t bytes = 0;
    bool is_moved = false;
    for (const config::Config& way : relaxed) {
      const config::Config smallest = with_rows(with_recompute(way, "block"), 1);
      const auto look = [&](std::int64_t needs, bool moves) {
        if (!least || needs < bytes) least = smallest, bytes = needs, is_moved = moves;
      };
      look(needed(smallest, most_shared()), false);
      if (!moves()) continue;
      for (config::Placement placement : leanest(smallest, kind_, most_shared()))
        for (const bool residuals : {false, true}) {
          placement.residuals = residuals && smallest.model.layers > 1;
          look(moved(smallest, placement, most_shared()).device, true);
        }
    }
    std::string with = fmt::format("optim.moments = \"{}\", train.recompute = \"block\"", least->optim.moments);
    for (const auto& [key, type] :
         {std::pair{"gradients", least->precision.gradients}, {"masters", least->precision.masters}})
      if (type != "fp32") with += fmt::format(", precision.{} = \"{}\"", key, type);
    if (is_moved) with += " and all that can lie in the host's memory there";
    return fmt::format("even one row of {} with {} needs {}: {}, or make the model smaller",
                       counted(least->train.seq_len, "token"), with, enough_in_words(bytes),
                       sharing_.alone()
                           ? "take a device with more memory, or share the run among several (`redline plan --gpus N` "
                             "tells how many it takes)"
                           : "start more ranks");
  }

  const config::Config& asked_;
  device::Kind kind_;
  std::int64_t available_;
  dist::Sharing sharing_;
  std::int64_t free_host_, host_;  // of the host's memory: what is free for a rank, and what it may take of that
};

}  // namespace

std::int64_t memory_needed(const config::Config& config, device::Kind kind, const dist::Sharing& sharing) {
  return memory_of_ranks(config, kind, sharing).device;
}

std::int64_t memory_allowed(const config::Config& config, const device::Device& device) {
  return std::min(device.available_bytes(), config::bytes_of_amount(config.memory.limit));
}

namespace {

// Two decimals of the largest unit of which there is a whole one.
std::string in_units(std::int64_t bytes, double (*round)(double)) {
  const auto words = [&](double amount, std::string_view unit) {
    return fmt::format("{:.2f} {}", round(100 * amount) / 100, unit);
  };
  if (const double amount = gib(bytes); amount >= 1) return words(amount, "GiB");
  if (const double amount = 1024 * gib(bytes); amount >= 1) return words(amount, "MiB");
  return words(1024 * 1024 * gib(bytes), "KiB");
}

}  // namespace

std::string memory_in_words(std::int64_t bytes) { return in_units(bytes, std::round); }
std::string enough_in_words(std::int64_t bytes) { return in_units(bytes, std::ceil); }

std::string more_host_in_words(const config::Config& config, const std::string& way, std::int64_t needs,
                               std::int64_t has) {
  const bool limited = has == config::bytes_of_amount(config.memory.host_limit);
  return fmt::format("with {} of the host's memory {} would fit ({})", enough_in_words(needs), way.empty() ? "it" : way,
                     limited ? fmt::format("memory.host_limit is {}", config.memory.host_limit)
                             : fmt::format("{} are free", memory_in_words(has)));
}

std::string what_is_recomputed(const config::Config& config) {
  const config::Placement& p = config.memory.placement;
  const std::string_view what = p.recompute.empty() ? std::string_view(config.train.recompute) : p.recompute;
  const bool one = p.recompute_layers == 1;
  const std::string layers = p.recompute_layers == 0 ? "layers"
                             : one                   ? "the first layer"
                                                     : fmt::format("the first {} layers", p.recompute_layers);
  if (what == "mlp")
    return fmt::format("the inner values of the MLP{} are", p.recompute_layers > 0 ? " of " + layers : "");
  if (what == "rest") return layers + (one ? " but its attention is" : " but their attention are");
  return what == "block" ? layers + (one ? " is" : " are") : "nothing is";
}

std::vector<config::Config> relaxations(const config::Config& asked) {
  std::vector<config::Config> ways;
  for (std::optional<config::Config> way = asked; way; way = with_half_rows(*way))
    for (const std::string_view moments : from(kMoments, asked.optim.moments)) {
      config::Config coarser = *way;
      coarser.optim.moments = moments;
      if (coarser != asked && is_accepted(coarser)) ways.push_back(std::move(coarser));
    }
  return ways;
}

std::vector<config::Config> coarser_types(const config::Config& config, device::Kind kind,
                                          const dist::Sharing& sharing) {
  std::vector<config::Config> ways = relaxations(config);
  std::erase_if(ways, [&](const config::Config& c) { return c.train.seq_len != config.train.seq_len; });
  config::Config all = ways.empty() ? config : ways.back();
  int types = ways.empty() ? 0 : 1;
  const auto add = [&](std::string config::Precision::*type) {
    config::Config way = config;
    way.precision.*type = "bf16";
    if (way == config || !sharing.alone() || !is_accepted(way)) return;
    ways.push_back(std::move(way));
    all.precision.*type = "bf16";
    ++types;
  };
  add(&config::Precision::gradients);
  if (model::lowering_options(config, kind).has_copies()) add(&config::Precision::masters);
  if (types > 1) ways.push_back(std::move(all));
  return ways;
}

std::vector<config::Config> relaxations_with_types(const config::Config& config, device::Kind kind,
                                                   const dist::Sharing& sharing) {
  const std::vector<config::Config> relaxed = relaxations(config);
  std::vector<config::Config> ways = coarser_types(config, kind, sharing),
                              last = coarser_types(relaxed.empty() ? config : relaxed.back(), kind, sharing);
  ways.insert(ways.end(), relaxed.begin(), relaxed.end());
  if (!last.empty()) ways.push_back(std::move(last.back()));
  return ways;
}

std::vector<config::Placement> placements(const config::Config& config, device::Kind kind,
                                          const dist::Sharing& sharing) {
  if (config.memory.fit != "auto") return {{}};
  model::LoweringOptions o = model::lowering_options(config, kind);
  o.sharing = sharing;
  std::vector<config::Placement> all;
  for (const bool masters : {false, true})
    for (const bool moments : {false, true})
      for (const bool averages : {false, true})
        for (const bool copies : {false, true}) {
          if ((masters && !o.has_copies()) || (averages && !o.average)) continue;
          o.placement = {.moments = moments, .masters = masters, .averages = averages, .copies = copies};
          if (copies && (masters || !model::can_make_copies(config.model, o))) continue;
          all.push_back(o.placement);
        }
  if (!model::streams_layers(sharing)) return all;
  const config::Placement state = all.back();
  for (const auto& [gradients, weights] : {std::pair{true, false}, {false, true}, {true, true}}) {
    all.push_back(state);
    all.back().gradients = gradients;
    all.back().weights = weights;
  }
  return all;
}

std::vector<config::Placement> leanest(const config::Config& config, device::Kind kind, const dist::Sharing& sharing) {
  const config::Placement all = placements(config, kind, sharing).back();
  if (!all.weights) return {all};
  config::Placement kept = all;
  kept.weights = false;
  return {all, kept};
}

std::vector<std::string> changed_keys(const config::Config& from, const config::Config& to) {
  std::vector<std::string> keys;
  for (const std::string& name : config::differing_keys(from, to)) {
    const config::Value value = config::read(*config::find_key(name), to);
    const auto* const text = std::get_if<std::string>(&value);
    keys.push_back(fmt::format("{}={}", name, text ? *text : config::literal(value)));
  }
  return keys;
}

std::string changes_in_words(const config::Config& from, const config::Config& to) {
  std::vector<std::string> words;
  for (const std::string& name : config::differing_keys(from, to))
    words.push_back(fmt::format("{} = {}", name, config::literal(config::read(*config::find_key(name), to))));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string what_would_fit(const config::Config& config, device::Kind kind, std::int64_t available,
                           const dist::Sharing& sharing, int ranks_here) {
  return Room(config, kind, available, sharing, ranks_here).advice();
}

std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device,
                           const dist::Sharing& sharing, int ranks_here) {
  const std::int64_t free = device.available_bytes(), available = memory_allowed(config, device);
  if (needed <= available) return "";
  const std::string has = available < free ? fmt::format("memory.limit allows {}", memory_in_words(available))
                                           : fmt::format("{} has {} free of {}", device.name(), memory_in_words(free),
                                                         memory_in_words(device.memory_bytes()));
  const std::string_view refused =
      config.memory.fit == "none" ? "; memory.fit = \"auto\" looks for what may move instead" : "";
  return fmt::format("the run needs {} and {}; {}{}; see {}", enough_in_words(needed), has,
                     what_would_fit(config, device.kind(), available, sharing, ranks_here), refused,
                     troubleshooting::kOutOfMemory);
}

void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device,
                    const dist::Sharing& sharing, int ranks_here) {
  if (const std::string problem = memory_problem(config, needed, device, sharing, ranks_here); !problem.empty())
    fail_user("{}", problem);
}

}  // namespace redline::train
