// A run on several ranks before it starts: every way to share the state, each with its fastest setting that fits, how
// the run scales, and the choice: parallel.mode = "auto" and train.batch_size = "auto" on ranks ask here. Plans are
// those of perf/plan.h, of the programs that such a rank would run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "perf/batch_size.h"

namespace redline::perf {

// One way to share the state out.
struct Way {
  dist::Mode mode = dist::Mode::zero1;
  int shards = 0;            // ranks that share out one copy of it; 0: all
  std::string name() const;  // "fsdp", or "fsdp of 8"
};

// One way on so many ranks.
struct RankPlan : Plan {
  double efficiency = 0;           // of one rank alone with the same setting
  double tokens_of_ranks() const;  // of a step of all
  std::string name() const { return Way{mode, shards}.name(); }
};

// What plans and runs choose among: train::modes_for(), and on several nodes fsdp inside of each, before fsdp over all
// of them.
std::vector<Way> ways_for(const config::Config& config, const std::optional<Fabric>& fabric, int ranks);
// The choice, for plans and for runs: of the plans that fit, and are as fast as the fastest, the one that sends the
// fewest bytes. Nothing: none fits.
std::optional<std::size_t> fastest_way(std::span<const RankPlan> plans);

struct ScalePlan {
  Machine machine;
  Fabric fabric;
  config::Config config;          // that the choice is of: the one that was asked for, or a relaxed one
  std::vector<RankPlan> modes;    // every one of ways_for(), with its fastest setting that fits, else its smallest
  std::size_t chosen = 0;         // of modes
  bool asked = false;             // parallel.mode said which
  std::vector<RankPlan> scaling;  // the choice on other numbers of ranks, fewest first
  const RankPlan& choice() const { return modes[chosen]; }

  // Of plan_ranks_or_relax(), where nothing fits as it was asked for:
  std::optional<RankPlan> asked_for = {};     // the least memory that it needs so
  std::vector<std::string> relaxed = {};      // the keys that let something fit, "optim.moments=8bit"
  std::string moved = {};                     // what lies elsewhere or is computed again, as memory.fit has it,
  config::Placement placement = {};           // and where
  std::optional<Plan> least_moved = {};       // where nothing at all fits: the choice, with all that may moved,
  int enough_gpus = 0;                        // and how many hold it; 0: not even 1024
  std::vector<std::string> enough_with = {};  // with these keys; none: as it was asked for
};
// Rows of a step on a rank are kept; micro-batches and recompute (unless it is set) are chosen for each mode.
ScalePlan plan_ranks(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                     const SearchOptions& options = {});
// The same, and where nothing fits, with the mildest change that lets something fit: another mode or recompute, bytes
// moved as a run would move them, then those of choose_or_relax().
ScalePlan plan_ranks_or_relax(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                              const SearchOptions& options = {});

// One sentence: why the mode is the choice, or what to do where nothing fits.
std::string why(const ScalePlan& plan);

// A rank's device, with the memory that is free there. Where its links are not known, as a CPU's, only its kind and
// memory count.
struct RankMachine {
  Machine machine;
  std::optional<Fabric> fabric;
};
// Describes ranks with such a device each, so many on a machine, whose memory CPUs share. Links come from the tables
// (perf/cards.h).
RankMachine rank_machine(device::Device& device, const config::Parallel& parallel, int ranks, int ranks_per_node);
// What connects machines by parallel.network; "auto": kUsualNetwork is taken for granted, since nothing says what does.
const Network& network_between(const config::Parallel& parallel);
// The links of a run's ranks: one node where they share a machine, or where NVLink connects machines.
Fabric fabric_between(const Card& card, const config::Parallel& parallel, int ranks, int ranks_per_node);

// What "auto" chose stands in a run's configuration in its place, with the reason above it.
bool was_chosen(const config::Config& config, std::string_view key);
// Such a mode, and such shards, are open again: for another run, or another number of ranks.
void reopen_mode(config::Config& config);

struct ModeChoice : Way {
  std::string why;  // a clause: "the fastest by the plan (zero1 281 ms, ddp 290 ms, fsdp 303 ms)"
};
// Chooses as plan_ranks() does, for the configuration's own batch and recompute. Without links the choice is zero1, or
// fsdp where zero1 does not fit.
ModeChoice choose_mode(const config::Config& config, const RankMachine& machine, int ranks);
// Puts the choice and its reason in place of "auto".
void set_mode(config::Config& config, const ModeChoice& choice, int ranks);

// train.batch_size = "auto" on ranks: the plan's word, for a rank's share of the state in the mode that is set, or in
// the one that "auto" will take. Where nothing fits, a UserError says how much the least needs.
AutoBatch find_batch_size_on_ranks(const config::Config& config, device::Device& device, int ranks, int ranks_per_node);

}  // namespace redline::perf
