// Lowers every mode to see what fits, and lays its step out to see how long it takes.
#include "perf/rank_mode.h"

#include <algorithm>
#include <vector>

#include "model/lowering.h"
#include "perf/cards.h"
#include "perf/roofline.h"

namespace redline::perf {
namespace {

constexpr double kAsFast = 1.005;

// On the rank with most of it.
std::int64_t memory_of(const config::Config& config, device::Kind kind, dist::Mode mode, int ranks) {
  model::LoweringOptions o = model::lowering_options(config, kind);
  o.sharing = {.rank = ranks - 1, .ranks = ranks, .mode = mode, .bf16_wire = config.parallel.wire == "bf16"};
  return model::lower(config.model, o).set.memory.total;
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
  const Way chosen = zero1 != fit.end() && zero1->seconds <= kAsFast * fastest.seconds ? *zero1 : fastest;
  std::vector<std::string> times;
  for (const Way& w : fit) times.push_back(fmt::format("{} {:.0f} ms", name_of(w.mode), 1e3 * w.seconds));
  return {chosen.mode, fmt::format("the fastest by the plan ({})", fmt::join(times, ", "))};
}

}  // namespace redline::perf
