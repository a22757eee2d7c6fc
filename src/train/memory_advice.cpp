// Lowers the configuration again with less to keep, until it fits.
#include "train/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

bool is_accepted(config::Config config) {
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

// The search for what fits: a device's memory, and how ranks share it.
class Room {
 public:
  Room(const config::Config& asked, device::Kind kind, std::int64_t available, const dist::Sharing& sharing)
      : asked_(asked), kind_(kind), available_(available), sharing_(sharing) {}

  std::string advice() const {
    std::vector<std::string> ways;
    const auto take = [&](const std::optional<config::Config>& way, const dist::Sharing& sharing) {
      if (way) ways.push_back(in_words(*way, sharing));
      return way.has_value();
    };
    for (const std::string_view recompute : behind(kRecomputes, asked_.train.recompute))
      if (take(if_fits(with_recompute(asked_, recompute)), sharing_)) break;  // the milder of the two
    take(with_largest_batch(asked_, sharing_), sharing_);
    for (const std::string_view moments : behind(kMoments, asked_.optim.moments))
      if (take(if_fits(with_moments(asked_, moments)), sharing_)) break;
    if (can_share_more()) take(if_fits(shared_more(), all_shared()), all_shared());
    if (!ways.empty()) return fmt::format("{} would fit", fmt::join(ways, " or "));
    if (const std::string cut = with_all_moved(); !cut.empty()) return cut;

    std::vector<config::Config> relaxed = relaxations(asked_);
    relaxed.insert(relaxed.begin(), asked_);
    for (const config::Config& way : relaxed)
      for (const std::string_view recompute : from(kRecomputes, asked_.train.recompute))
        if (const auto found = with_largest_batch(with_recompute(way, recompute), sharing_))
          return fmt::format("{} would fit", in_words(*found, sharing_));
    if (can_share_more())
      for (config::Config& way : relaxed) {
        way.parallel.mode = "fsdp";
        way.parallel.shards = 0;
        if (const auto found = with_largest_batch(with_recompute(way, "block"), all_shared()))
          return fmt::format("{} would fit", in_words(*found, all_shared()));
      }
    return nothing(relaxed);
  }

 private:
  std::int64_t needed(const config::Config& config, const dist::Sharing& sharing) const {
    return memory_needed(config, kind_, sharing);
  }
  std::string in_words(const config::Config& way, const dist::Sharing& sharing) const {
    return fmt::format("{} ({})", changes_in_words(asked_, way), memory_in_words(needed(way, sharing)));
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

  // The step cut into single rows, with all that can lie in the host's memory there; empty where that does not fit.
  std::string with_all_moved() const {
    if (asked_.memory.fit != "auto" || asked_.train.batch_size == 1) return "";
    config::Config way = with_rows(asked_, 1);
    if (!is_accepted(way)) return "";
    model::LoweringOptions options = model::lowering_options(way, kind_);
    options.sharing = sharing_;
    const bool layers = model::streams_layers(sharing_);
    options.placement = {.moments = true,
                         .masters = options.has_copies(),
                         .averages = options.average,
                         .gradients = layers,
                         .weights = layers,
                         .residuals = true};
    options.recompute = program::Recompute::block;
    const program::MemoryPlan memory = model::lower(way.model, options).set.memory;
    const std::int64_t host = memory.host.beyond_results();
    const std::int64_t free = std::min(device::available_host_bytes(), config::bytes_of_amount(way.memory.host_limit));
    if (memory.device.total > available_ || host > (kind_ == device::Kind::cpu ? free - memory.device.total : free))
      return "";
    return fmt::format("{} ({}, and {} of the host's memory) would fit", changes_in_words(asked_, way),
                       memory_in_words(memory.device.total), memory_in_words(host));
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
  config::Config shared_more() const {
    config::Config config = asked_;
    config.parallel.mode = "fsdp";
    config.parallel.shards = 0;
    return config;
  }

  std::string nothing(const std::vector<config::Config>& relaxed) const {
    std::optional<config::Config> least;
    std::int64_t bytes = 0;
    for (const config::Config& way : relaxed) {
      const config::Config smallest = with_rows(with_recompute(way, "block"), 1);
      const std::int64_t n = needed(smallest, can_share_more() ? all_shared() : sharing_);
      if (!least || n < bytes) least = smallest, bytes = n;
    }
    return fmt::format(
        "even one row of {} with {} needs {}: {}, or make the model smaller", counted(least->train.seq_len, "token"),
        fmt::format("optim.moments = \"{}\", train.recompute = \"block\"", least->optim.moments),
        memory_in_words(bytes),
        sharing_.alone() ? "take a device with more memory, or share the run among several (`redline plan --gpus N` "
                           "tells how many it takes)"
                         : "start more ranks");
  }

  const config::Config& asked_;
  device::Kind kind_;
  std::int64_t available_;
  dist::Sharing sharing_;
};

}  // namespace

std::int64_t memory_needed(const config::Config& config, device::Kind kind, const dist::Sharing& sharing) {
  model::LoweringOptions options = model::lowering_options(config, kind);
  options.sharing = sharing;
  return model::lower(config.model, options).set.memory.device.total;
}

std::int64_t memory_allowed(const config::Config& config, const device::Device& device) {
  return std::min(device.available_bytes(), config::bytes_of_amount(config.memory.limit));
}

std::string memory_in_words(std::int64_t bytes) {
  constexpr double kSmall = 0.1;  // GiB
  return gib(bytes) < kSmall ? fmt::format("{:.2f} MiB", 1024 * gib(bytes)) : fmt::format("{:.2f} GiB", gib(bytes));
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
                           const dist::Sharing& sharing) {
  return Room(config, kind, available, sharing).advice();
}

std::string memory_problem(const config::Config& config, std::int64_t needed, const device::Device& device,
                           const dist::Sharing& sharing) {
  const std::int64_t free = device.available_bytes(), available = memory_allowed(config, device);
  if (needed <= available) return "";
  const std::string has = available < free ? fmt::format("memory.limit allows {}", memory_in_words(available))
                                           : fmt::format("{} has {} free of {}", device.name(), memory_in_words(free),
                                                         memory_in_words(device.memory_bytes()));
  const std::string_view refused =
      config.memory.fit == "none" ? "; memory.fit = \"auto\" looks for what may lie in the host's memory instead" : "";
  return fmt::format("the run needs {} and {}; {}{}; see {}", memory_in_words(needed), has,
                     what_would_fit(config, device.kind(), available, sharing), refused, troubleshooting::kOutOfMemory);
}

void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device,
                    const dist::Sharing& sharing) {
  if (const std::string problem = memory_problem(config, needed, device, sharing); !problem.empty())
    fail_user("{}", problem);
}

}  // namespace redline::train
