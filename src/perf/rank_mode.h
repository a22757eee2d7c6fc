// What `parallel.mode = "auto"` stands for on ranks that were started: the fastest way to share out that fits.
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
  std::optional<Known> known;  // where the plan can say how long a step takes
};
// Of ranks that have such a device each, so many on a machine. Links are those of the tables (perf/network.h); what
// connects machines is taken to be NDR InfiniBand, since nobody says. A card that is in no table, and a CPU, are not
// known.
RankMachine rank_machine(device::Device& device, int ranks, int ranks_per_node);

struct ModeChoice {
  dist::Mode mode = dist::Mode::zero1;
  std::string why;  // a clause: "the fastest by the plan (zero1 281 ms, ddp 290 ms, fsdp 303 ms)"
};
// With the configuration's own batch and recompute. Modes that are as fast as another (kAsFast) give way to zero1.
// Where the plan cannot say, zero1, and fsdp where that does not fit.
ModeChoice choose_mode(const config::Config& config, const RankMachine& machine, int ranks);

}  // namespace redline::perf
