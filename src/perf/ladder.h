// From the naive step to the full one, one optimisation a rung, each measured on what the rungs before it have left; or
// each left out of the full step. Decides what is measured and what stays; who measures is given.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "perf/fused.h"
#include "perf/measure.h"
#include "perf/rungs.h"

namespace redline::perf {

// The user's configuration with keys changed: "kernels.graphs=off". What cannot be is a UserError.
using LoadConfig = std::function<config::Config(const KeyValues& keys)>;

enum class RowState {
  measured,
  failed,         // it was tried, and cannot be run here
  no_effect,      // the device does the same with and without it
  not_separable,  // it has no slow twin
  absent,         // nothing does it
};
std::string_view name_of(RowState state);

struct LadderRow {
  std::string name;
  KeyValues keys;  // that switch it
  std::string about;
  RowState state = RowState::measured;
  std::string reason;  // of what was not measured, or did not stay
  Measured measured;
  double over_before =
      0;                  // tokens a second over those of what stayed before it; in a row of leaving out, over the full
  double over_first = 0;  // over the naive step's
  bool kept = false;      // in what follows
  bool changes_loss = false;
  double saved_bytes = 0;  // of a step: what is not separable
};

struct Ladder {
  std::vector<LadderRow> rows;
  KeyValues full;        // keys of the last that stayed
  bool stopped = false;  // by a signal
};

struct LadderOptions {
  double seconds = 120;  // in all, about: a rung gets its share of what is left
  bool without = false;  // leave each out of the full step
  const StopFlag* stop = nullptr;
  // Before each that is measured.
  std::function<void(const std::string& name, std::size_t number, std::size_t of)> progress = {};
};

Ladder climb(const LoadConfig& load, const Bench& bench, const LadderOptions& options);
// The tiers up to the one that is named, from the safest on.
Ladder climb_tiers(const LoadConfig& load, const Bench& bench, const LadderOptions& options, std::string_view last);

}  // namespace redline::perf
