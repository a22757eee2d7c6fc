// The tables behind `redline ladder`: the rungs from the naive step to the full one, and the three tiers. All of them
// are lists of configuration keys.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "perf/plan.h"

namespace redline::perf {

using KeyValues = std::vector<std::string>;  // "kernels.graphs=auto"
std::string key_of(const std::string& pair);
// The keys with others put over them.
KeyValues over(KeyValues keys, const KeyValues& others);

enum class RungKind {
  speed,   // stays in what follows, unless it makes the step slower
  memory,  // buys memory with time: stays only where the step gets faster
  batch,   // the plan's best batch size; its keys are known after planning
  fused,   // has no slow twin: its savings are counted
  absent,  // no key does it; `lacks` says why
};

struct Rung {
  std::string name;  // "CUDA graphs"
  RungKind kind = RungKind::speed;
  KeyValues keys;             // switch it on
  std::string about;          // what it is, in a few words
  std::string lacks = {};     // why it changes nothing on a device where it changes nothing
  bool changes_loss = false;  // it computes something else, not only faster
};

// The naive step: every rung off. `base` says the rows of a micro-batch.
KeyValues naive_keys(const config::Config& config, const Setting& base);
std::vector<Rung> rungs();  // in their order

struct Tier {
  std::string_view name, about;
  KeyValues keys;
};
std::span<const Tier> tiers();  // from the safest to the fastest
// An unknown name is a UserError that lists all tiers.
const Tier& tier_called(std::string_view name);

}  // namespace redline::perf
