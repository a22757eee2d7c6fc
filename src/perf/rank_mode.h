// The choice behind `parallel.mode = "auto"` on ranks that were started: the fastest mode that fits.
#pragma once

#include <optional>
#include <string>

#include "config/config.h"
#include "dist/sharing.h"
#include "perf/scale.h"

namespace redline::perf {

struct RankMachine {
  device::Kind kind = device::Kind::cpu;
  std::int64_t available = 0;  // bytes on a rank
  struct Known {
    Machine machine;
    Fabric fabric;
  };
  std::optional<Known> known;  // where the plan can time a step
};
// Describes ranks with such a device each, so many on a machine. Links come from the tables (perf/network.h); machines
// are taken to be connected by NDR InfiniBand, since nobody says. `known` is empty for a CPU and for a card that is in
// no table.
RankMachine rank_machine(device::Device& device, int ranks, int ranks_per_node);

struct ModeChoice {
  dist::Mode mode = dist::Mode::zero1;
  std::string why;  // a clause: "the fastest by the plan (zero1 281 ms, ddp 290 ms, fsdp 303 ms)"
};
// Chooses for the configuration's own batch and recompute. Among modes of equal speed (kAsFast) zero1 wins. Without a
// plan the choice is zero1, or fsdp where zero1 does not fit.
ModeChoice choose_mode(const config::Config& config, const RankMachine& machine, int ranks);

}  // namespace redline::perf
