// The ladder climbs from the naive step to the full one, one optimisation a rung. Each rung is measured on top of those
// that stayed, or, with `without`, by leaving it out of the full step. Rungs and the three tiers are lists of
// configuration keys. This file decides what is measured and what stays; a Bench measures.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "perf/plan.h"
#include "perf/search.h"

namespace redline::perf {

enum class RungKind {
  speed,          // stays in what follows, unless it makes the step slower
  memory,         // buys memory with time: stays only where the step gets faster
  batch,          // the plan's best batch size; its keys are known after planning
  another_model,  // measured beside the others, never in what follows
  absent,         // no key does it; `lacks` says why
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
KeyValues naive_keys(const config::Config& config, const Setting& base, int ranks = 1);
std::vector<Rung> rungs(const config::Config& config, int ranks = 1);  // in their order

struct Tier {
  std::string_view name, about;
  KeyValues keys;
};
std::span<const Tier> tiers();  // from the safest to the fastest
// An unknown name is a UserError that lists all tiers.
const Tier& tier_called(std::string_view name);

struct Ladder {
  std::vector<Trial> rows;
  KeyValues full;        // keys of all rungs that stayed
  bool stopped = false;  // by a signal
};

struct LadderOptions : SearchOptions {
  bool without = false;  // leave each rung out of the full step
};

Ladder climb(const LoadConfig& load, const Bench& bench, const LadderOptions& options);
// Measures the tiers, from the safest to the one named.
Ladder climb_tiers(const LoadConfig& load, const Bench& bench, const SearchOptions& options, std::string_view last);

}  // namespace redline::perf
