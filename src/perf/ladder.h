// The ladder climbs from the naive step to the full one, one optimisation a rung. Each rung is measured on top of those
// that stayed, or, with `without`, by leaving it out of the full step. This file decides what is measured and what
// stays; a Bench measures.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "perf/fused.h"
#include "perf/measure.h"
#include "perf/rungs.h"

namespace redline::perf {

// Loads the user's configuration with keys changed: "kernels.graphs=off". A bad key is a UserError.
using LoadConfig = std::function<config::Config(const KeyValues& keys)>;

enum class RowState {
  measured,
  failed,         // tried, and it cannot run here
  no_effect,      // the device does the same without it
  not_separable,  // it has no slow twin
  absent,         // redline has no such optimisation
};
std::string_view name_of(RowState state);

struct LadderRow {
  std::string name;
  KeyValues keys;  // its switches
  std::string about;
  RowState state = RowState::measured;
  std::string reason;  // why it was not measured, or did not stay
  Measured measured;
  // Tokens a second, as a factor of the row that stayed before; with `without`, of the full step.
  double over_before = 0;
  double over_first = 0;  // as a factor of the naive step
  bool kept = false;      // in the rungs that follow
  bool changes_loss = false;
  double saved_bytes = 0;  // of a step, for a row that is not separable
};

struct Ladder {
  std::vector<LadderRow> rows;
  KeyValues full;        // keys of all rungs that stayed
  bool stopped = false;  // by a signal
};

struct LadderOptions {
  double seconds = 120;  // in all, about; a rung gets its share of the rest
  bool without = false;  // leave each rung out of the full step
  const StopFlag* stop = nullptr;
  // Called before each measurement.
  std::function<void(const std::string& name, std::size_t number, std::size_t of)> progress = {};
};

Ladder climb(const LoadConfig& load, const Bench& bench, const LadderOptions& options);
// Measures the tiers, from the safest to the one named.
Ladder climb_tiers(const LoadConfig& load, const Bench& bench, const LadderOptions& options, std::string_view last);

}  // namespace redline::perf
