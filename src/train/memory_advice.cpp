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

namespace redline::train {
namespace {

constexpr std::int64_t kMostMicroBatches = 1 << 20;  // that train.accumulate takes
constexpr std::int64_t kShortestRow = 128;           // that is worth to be advised

// Each keeps no more than those before it.
constexpr std::array<std::string_view, 3> kRecomputes = {"none", "mlp", "block"}, kMoments = {"fp32", "bf16", "8bit"};

std::span<const std::string_view> from(const std::array<std::string_view, 3>& list, const std::string& first) {
  return {std::ranges::find(list, first), list.end()};
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

    std::vector<config::Config> relaxed = relaxations(asked_);
    relaxed.insert(relaxed.begin(), asked_);
    for (const config::Config& way : relaxed)
      for (const std::string_view recompute : from(kRecomputes, asked_.train.recompute))
        if (const auto found = with_largest_batch(with_recompute(way, recompute), sharing_))
          return fmt::format("{} would fit", in_words(*found, sharing_));
    if (can_share_more())
      for (config::Config& way : relaxed) {
        way.parallel.mode = "fsdp";
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
    return fmt::format("{} ({:.2f} GiB)", changes_in_words(asked_, way), gib(needed(way, sharing)));
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

  // fp8 makes its copies of weights from whole ones.
  bool can_share_more() const {
    return !sharing_.alone() && sharing_.mode != dist::Mode::fsdp && asked_.precision.matmul != "fp8";
  }
  dist::Sharing all_shared() const {
    dist::Sharing sharing = sharing_;
    sharing.mode = dist::Mode::fsdp;
    return sharing;
  }
  config::Config shared_more() const {
    config::Config config = asked_;
    config.parallel.mode = "fsdp";
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
        "even one row of {} with {} needs {:.2f} GiB: {}, or make the model smaller",
        counted(least->train.seq_len, "token"),
        fmt::format("optim.moments = \"{}\", train.recompute = \"block\"", least->optim.moments), gib(bytes),
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
  const std::int64_t available = device.available_bytes();
  if (needed <= available) return "";
  return fmt::format("the run needs {:.2f} GiB and {} has {:.2f} GiB free of {:.2f} GiB; {}; see {}", gib(needed),
                     device.name(), gib(available), gib(device.memory_bytes()),
                     what_would_fit(config, device.kind(), available, sharing), troubleshooting::kOutOfMemory);
}

void require_memory(const config::Config& config, std::int64_t needed, const device::Device& device,
                    const dist::Sharing& sharing) {
  if (const std::string problem = memory_problem(config, needed, device, sharing); !problem.empty())
    fail_user("{}", problem);
}

}  // namespace redline::train
