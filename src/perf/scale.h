// Plans a run on several ranks before it starts. For each way to share the state, a step is laid out block by block on
// two streams, one that computes and one that communicates. The plan tells the time, the memory of each rank, and how
// the run scales; parallel.mode = "auto" takes the fastest mode that fits. The collectives are those of
// dist/group.h; nothing is sent, and no device is touched.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "dist/sharing.h"
#include "perf/batch_size.h"
#include "perf/cards.h"

namespace redline::perf {

using dist::Mode;
inline constexpr std::array kModes = {Mode::ddp, Mode::zero1, Mode::fsdp};  // each keeps less than those before it

// A part of a micro-step between places where a rank may wait for others: embedding, layer, head. Elements are those of
// parameters.
struct Block {
  std::string name;                  // "layer 3"
  double forward = 0, backward = 0;  // seconds; recompute is part of the backward pass
  double backward_adding = 0;        // where gradients are added to those of the micro-step before
  std::int64_t reads = 0;            // weights of its forward pass,
  std::int64_t first_reads = 0;      // of them those that no block before it has read,
  std::int64_t backward_reads = 0;   // and weights of its backward pass
  std::int64_t gradients = 0;        // finished by this block
};

// The work of one rank in a step, whatever the number of ranks.
struct StepWork {
  std::vector<Block> blocks;  // in the order of the forward pass
  std::int64_t micro_batches = 1;
  double update = 0;            // seconds over all parameters
  std::int64_t parameters = 0;  // elements of the flat arrays
  int weight_bytes = 2;         // of an element as blocks read it
  int gradient_bytes = 4;       // of an element on its way
  double tokens = 0;            // of a rank
  double flops = 0;             // a token, as MFU counts them
  double compute() const;       // seconds of a step on one rank alone
};
StepWork step_work(const config::Config& config, const Machine& machine);

// One use of a collective in a step.
struct CollectiveUse {
  Collective collective = Collective::all_reduce;
  std::string_view of;  // "gradients", "weights, backward pass"
  std::int64_t count = 0;
  double bytes = 0;    // of all arrays that it was used on
  double seconds = 0;  // on the communicating stream
  double exposed = 0;  // of them, those that the computing stream waited for
};

struct RankStep {
  double compute = 0, exposed = 0;
  double stragglers = 0;  // waiting for whoever is slowest
  std::vector<CollectiveUse> collectives;
  double total() const { return compute + exposed + stragglers; }
};

// The slowest of so many ranks whose steps spread like a normal distribution: standard deviations above the mean.
double expected_slowest(int ranks);

// The deviation of a step's time, as a share of it. It is the one fitted constant here, from published runs of LLMQ and
// torchtitan (tests/perf/scale_test.cpp; docs/ranks.md).
inline constexpr double kStraggler = 0.0221;
double straggler_share(int ranks, double deviation = kStraggler);

RankStep simulate(const StepWork& work, Mode mode, int ranks, const Fabric& fabric, double straggler = kStraggler);

// Bytes on the rank with the largest share.
struct RankMemory {
  std::int64_t masters = 0, working_copies = 0, gradients = 0, moments = 0, averages = 0;
  std::int64_t gathered = 0;  // fsdp: weights of two blocks, and their gradients until they are reduced
  std::int64_t activations = 0;
  std::int64_t communication = 0;  // the library's buffers, and gradients in the type in which they travel
  std::int64_t rest = 0;           // workspace, inputs, context
  std::int64_t total() const {
    return masters + working_copies + gradients + moments + averages + gathered + activations + communication + rest;
  }
};
RankMemory memory_on_rank(const Plan& plan, const StepWork& work, Mode mode, int ranks);

// One mode on so many ranks.
struct RankPlan {
  Mode mode = Mode::zero1;
  int ranks = 1;
  Setting setting;  // of one rank
  RankMemory memory;
  std::int64_t tuning = 0;  // bytes beside it, needed briefly at the start
  bool fits = false;        // tuning included
  RankStep times;
  double tokens_per_step = 0, tokens_per_s = 0, mfu = 0;  // of all ranks
  double efficiency = 0;                                  // of one rank alone with the same setting
};

struct ScalePlan {
  Machine machine;
  Fabric fabric;
  config::Config config;          // that it is of: the one that was asked for, or a relaxed one
  Plan plan;                      // of one rank, with the setting of the choice
  std::vector<RankPlan> modes;    // as modes_for(), each with its fastest setting that fits, else its smallest
  std::size_t chosen = 0;         // of modes
  bool asked = false;             // parallel.mode said which
  std::vector<RankPlan> scaling;  // the choice on other numbers of ranks, fewest first
  const RankPlan& choice() const { return modes[chosen]; }

  // Of plan_ranks_or_relax(), where nothing fits as it was asked for:
  std::optional<RankPlan> asked_for = {};     // the least memory that it needs so
  std::vector<std::string> relaxed = {};      // the keys that let something fit, "optim.moments=8bit"
  int enough_gpus = 0;                        // where nothing at all fits: so many hold it; 0: not even 1024
  std::vector<std::string> enough_with = {};  // with these keys; none: as it was asked for
};
// Rows of a step on a rank are kept; micro-batches and recompute (unless it is set) are chosen for each mode.
ScalePlan plan_ranks(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                     const SearchOptions& options = {});
// The same, and where nothing fits, with the mildest change that lets something fit: another parallel.mode, then those
// of choose_or_relax().
ScalePlan plan_ranks_or_relax(const config::Config& config, const Machine& machine, const Fabric& fabric, int ranks,
                              const SearchOptions& options = {});

// The modes that a run of the configuration may have on so many ranks: fp8 makes its copies of weights from whole ones.
std::vector<Mode> modes_for(const config::Config& config, int ranks);

// The fewest ranks, a power of two, that hold the configuration with the setting that keeps least; 0: not even 1024 do.
int fewest_ranks(const config::Config& config, const Machine& machine);

// One sentence: why the mode is the choice, or what to do where nothing fits.
std::string why(const ScalePlan& plan);

struct RankMachine {
  device::Kind kind = device::Kind::cpu;
  std::int64_t available = 0;  // bytes on a rank
  struct Known {
    Machine machine;
    Fabric fabric;
  };
  std::optional<Known> known;  // where the plan can time a step
};
// Describes ranks with such a device each, so many on a machine. Links come from the tables (perf/cards.h); machines
// are taken to be connected by NDR InfiniBand, since nothing says what does. `known` is empty for a CPU and for a card
// that is in no table.
RankMachine rank_machine(device::Device& device, int ranks, int ranks_per_node);

struct ModeChoice {
  dist::Mode mode = dist::Mode::zero1;
  std::string why;  // a clause: "the fastest by the plan (zero1 281 ms, ddp 290 ms, fsdp 303 ms)"
};
// Chooses for the configuration's own batch and recompute. Among modes of equal speed (kAsLong) zero1 wins. Without a
// plan the choice is zero1, or fsdp where zero1 does not fit.
ModeChoice choose_mode(const config::Config& config, const RankMachine& machine, int ranks);

}  // namespace redline::perf
