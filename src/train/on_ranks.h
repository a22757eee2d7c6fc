// What a run on several ranks cannot have, as one table of settings and modes, and how ranks share the micro-batches of
// a step. Whatever runs, plans or advises asks it: `redline train`, `redline plan`, parallel.mode = "auto", and what
// would fit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "dist/sharing.h"

namespace redline::train {

// A setting, and ways to share a run's state that it does not go with.
struct NotOnRanks {
  std::string_view setting;  // `train.max_hours`, `precision.matmul = "fp8"`
  std::string_view key;
  bool (*has)(const config::Config& config);
  std::vector<dist::Mode> modes;
  std::string_view because;  // two clauses: why, and what to do
  std::string_view instead;
};
std::span<const NotOnRanks> not_on_ranks();

// The row by which several ranks cannot share a run of the configuration so; null: they can.
const NotOnRanks* refused_by(const config::Config& config, dist::Mode mode);

// The same as a sentence; empty: they can.
std::string refusal(const config::Config& config, dist::Mode mode);

// The modes that so many ranks may have, each of which keeps less than those before it.
std::vector<dist::Mode> modes_for(const config::Config& config, int ranks);

// A configuration that no run on so many ranks can have is a UserError: its own mode is refused, or for "auto" all are,
// or rows cannot be shared among them.
void require_for_ranks(const config::Config& config, int ranks);

// A step keeps its rows on another number of ranks than the run had so far (`begun`: a run that goes on), or than the
// configuration was made for. A launcher that starts a run again with fewer ranks gives the words that it was begun
// with, so of a run that goes on its rows count, whatever train.accumulate they have, unless a change is allowed. A
// number of ranks that does not divide the micro-batches is a UserError.
void share_micro_batches(config::Config& config, std::int64_t ranks, const config::Config* begun = nullptr,
                         bool given_counts = true);

}  // namespace redline::train
