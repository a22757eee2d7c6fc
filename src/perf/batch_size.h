// The search for the batch size of a configuration: rows of a micro-batch, micro-batches of a step, recompute. choose()
// finds the fastest by plans; train.batch_size = "auto" runs the best few of them on the device, and keeps the fastest.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "perf/fit.h"
#include "perf/plan.h"
#include "perf/search.h"

namespace redline::perf {

// A micro-batch of so many tokens fills any card: nothing is gained by other rows then.
inline constexpr std::int64_t kEnoughTokens = 8192;

// The settings that fit the machine, fastest first. They keep the rows of a step. Where that makes every setting much
// slower (a number of rows without a useful divisor), the nearest better number is taken and `changed` is set.
// Recompute is chosen as well, unless the configuration sets it.
//
// Not every setting is planned. More rows need more memory and are no slower, with one kind of recompute: so the most
// rows that fit are found by bisection, and of those below only the next few are planned.
struct Choice {
  config::Config config;   // that the plans are of: the one that was asked for, or a relaxed one
  std::vector<Plan> best;  // empty: nothing fits
  bool changed = false;
  std::size_t considered = 0, fitting = 0;  // settings, and how many of them fit, planned or not
  std::vector<Plan> too_large;              // of the planned ones
  std::optional<Plan> smallest;             // the setting with the least memory, whether it fits or not

  // Of choose_or_relax(), where nothing fits as it was asked for:
  std::optional<Plan> asked_for = {};     // the least memory that it needs so
  std::vector<std::string> relaxed = {};  // the keys that let something fit, "optim.moments=8bit"
  // Where nothing at all fits on one:
  int enough_gpus = 0;                   // so many hold it; 0: not even 1024
  std::optional<Plan> least_moved = {};  // `smallest` with all in the host's memory that may lie there
};
Choice choose(const config::Config& config, const Machine& machine, const SearchOptions& options = {},
              const Spread& spread = {});
// The same, and where nothing fits, with the mildest change that lets something fit: a recompute that was not set, then
// those of train/memory_advice.h.
Choice choose_or_relax(const config::Config& config, const Machine& machine, const SearchOptions& options = {});

// A larger step, instead of the same one cut otherwise: more rows of a micro-batch, with recompute and micro-batches as
// they are. Learning rates follow the root of the ratio (with_setting).
inline constexpr double kLeastFilled = 0.85, kMostFilled = 0.95;  // of the memory
struct Growth {
  std::vector<Plan> rows;       // of 1, 1.5, 2 and 3 times the rows, whether they fit or not
  std::optional<Plan> filling;  // the most rows that leave the rest of the memory free; nothing: not even one row does
};
Growth grow(const config::Config& config, const Machine& machine, const SearchOptions& options = {});

// The configurations between which choose_or_relax() goes, the mildest change first. Recompute is open. Where the last
// does not fit, none of them does.
std::vector<config::Config> relaxed_ways(const config::Config& config);
// The plan of the setting that keeps least.
Plan least_plan(const config::Config& config, const Machine& machine, const Spread& spread = {});
// The plan of a setting with all in the host's memory that may lie there, and what is computed again as well or not.
Plan least_moved(const config::Config& config, const Setting& setting, const Machine& machine,
                 const Spread& spread = {});
// The fewest ranks, a power of two, that hold the configuration with that setting, in the mode that shares most; 0: not
// even 1024 do.
int fewest_ranks(const config::Config& config, const Machine& machine);

// The keys of a setting of the choice, as `redline train` takes them: those that let it fit, then its own.
std::vector<std::string> keys_to_set(const Choice& choice, const Setting& setting);

// The memory that a run may take: the machine's, or less where the user says so.
std::string room_in_words(const config::Config& config, const Machine& machine);
// What counts against that room.
std::string needs_in_words(const Plan& p, const config::Config& config, const Machine& machine);
// ", and 12.82 GiB with all that can lie in the host's memory there"; empty where that is no less.
std::string moved_in_words(const std::optional<Plan>& moved, const Plan& least, const config::Config& config,
                           const Machine& machine);

// One or two sentences: why the first of `best` is the choice, or why nothing fits and what would, with clauses of
// whoever knows more of the latter.
std::string why(const Choice& choice, const Machine& machine, const std::vector<std::string>& others = {});

// The first coarser types or shorter rows (train/memory_advice.h) with which a step of as many tokens fits, with bytes
// moved if need be, as a clause with the keys to set; empty: none do.
std::string changes_that_fit(const config::Config& config, const Machine& machine, const Room& room);

// The machine with the memory that is free on it now. Memory that the process holds already counts as the plan counts
// it.
Machine machine_now(device::Device& device);

struct AutoBatchOptions {
  bool measure = true;        // off: the plan decides alone
  SearchOptions search = {};  // where the flag is set, no further setting is run
};

// The rows of a step stay as they are, or the learning rate follows (perf/plan.h).
struct AutoBatch {
  config::Config config;         // with numbers in place of "auto"
  std::vector<Trial> tried;      // the chosen one first; rates are token slots a second, on the run's own data
  std::int64_t rows_before = 0;  // of a step, as it was asked for; `config` may have others
};

// Where no setting fits, a UserError says how much the smallest one needs.
AutoBatch find_batch_size(const config::Config& config, device::Device& device, const AutoBatchOptions& options);

// A resumed run keeps the batch size it began with, and nothing is searched. A recompute that the configuration sets
// stays, since it does not change the results.
config::Config adopt_batch_size(const config::Config& config, const config::Config& run);

}  // namespace redline::perf
