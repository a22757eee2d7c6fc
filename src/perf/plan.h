// What a run will be, before anything runs: its memory by kind, its FLOPs by part, the step expected of a machine; and
// the batch size and recompute that would be fastest there. Lowers programs and plans their memory; touches no device.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "perf/roofline.h"

namespace redline::perf {

// FLOPs a token of full rows, forward and backward, as MFU counts them.
struct FlopParts {
  double projections = 0;  // QKV and the output of attention
  double scores = 0;       // pairs that the mask keeps
  double mlp = 0;
  double head = 0;
  double scores_palm = 0;  // every pair of a row, masked or not
  double total() const { return projections + scores + mlp + head; }
  double palm() const { return projections + scores_palm + mlp + head; }
};

// Bytes, each counted once. On a card everything that the process takes of it; on the CPU the arena.
struct MemoryKinds {
  std::int64_t masters = 0, working_copies = 0, gradients = 0, moments = 0, averages = 0;
  std::int64_t activations = 0;  // with what the planner could not fill between them
  std::int64_t workspace = 0;    // scratch of nodes, the kernels' and the uploads'
  std::int64_t inputs = 0;       // batch, results, tables, the caches of samples
  std::int64_t context = 0;      // the driver's, and the libraries' kernels
  std::int64_t arena = 0;        // what a run's memory_gib shows; parts of it are in all of the above but context
  std::int64_t total() const {
    return masters + working_copies + gradients + moments + averages + activations + workspace + inputs + context;
  }
};

// Values alike in every layer are one: "gate_up", 18 of them.
struct NamedBytes {
  std::string name;
  std::int64_t count = 0, bytes = 0;  // of all of them
};

struct Expected {
  double step_seconds = 0;
  double tokens_per_s = 0, mfu = 0, mfu_palm = 0;
};

// One way to run: rows of a micro-batch, micro-batches of a step, what is computed again.
struct Setting {
  std::int64_t batch_size = 0, accumulate = 0;
  std::string recompute;
  std::int64_t rows() const { return batch_size * accumulate; }  // of a step
  bool operator==(const Setting&) const = default;
};

Setting setting_of(const config::Config& config);
// The configuration with the setting in its place. Where a step has other rows than before, learning rates follow the
// root of their ratio.
config::Config with_setting(const config::Config& config, const Setting& setting);

struct Plan {
  Setting setting;
  std::int64_t parameters = 0;
  std::int64_t tokens_per_step = 0;
  FlopParts flops;  // a token
  MemoryKinds memory;
  std::int64_t checkpoint = 0;      // bytes of one on the disk
  std::int64_t snapshot = 0;        // bytes of the state's copy from which a checkpoint is written beside training
  bool snapshot_on_device = false;  // else in the host's memory, which is not counted
  std::int64_t tuning = 0;          // bytes wanted for a moment at the start: operands to time products with
  bool fits = false;                // tuning included
  std::vector<NamedBytes> largest;  // activations, where most is alive
  std::string peak_node;
  Expected expected;
};
Plan make_plan(const config::Config& config, const Machine& machine);
// The configuration as the machine can run it: without fp8 on a card that has none.
config::Config as_possible(const config::Config& config, const Machine& machine);

// Ways to run the same steps that fit the machine, fastest first. They keep the rows of a step; where every way that
// does is much slower than one that cannot (a number of rows with no useful divisor), the nearest number of rows that
// can be is taken, and `changed` says so. Recompute is chosen as well, unless the configuration sets it.
struct Choice {
  std::vector<Plan> best;  // empty: nothing fits
  bool changed = false;
  std::size_t considered = 0;
  std::vector<Plan> too_large;   // what does not fit
  std::optional<Plan> smallest;  // what needs least, whether it fits or not
};
// `progress` hears how many settings of how many were planned.
using ChooseProgress = std::function<void(std::size_t done, std::size_t of)>;
Choice choose(const config::Config& config, const Machine& machine, const ChooseProgress& progress = {});

// In a sentence or two: why the first of `best` is the choice, or why there is none.
std::string why(const Choice& choice, const Machine& machine);

}  // namespace redline::perf
