// A plan tells of a run before it starts: memory by kind, FLOPs by part, the step expected on a machine, and the time
// of the step's parts with their floors. Planning lowers programs and lays out their memory; it touches no device.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "perf/filling.h"
#include "perf/walk.h"

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

// Bytes by kind, each counted once. On a card they are all memory that the process takes; on the CPU, the arena. On
// several ranks they are those of the rank with most.
struct MemoryKinds {
  std::int64_t masters = 0, working_copies = 0, gradients = 0, moments = 0, averages = 0;
  std::int64_t gathered = 0;       // fsdp: weights and gradients of units that are there for a while
  std::int64_t activations = 0;    // with the gaps that the planner could not fill
  std::int64_t workspace = 0;      // scratch of nodes, and the kernels'
  std::int64_t communication = 0;  // ranks: gradients in the type in which they travel, the library's buffers
  std::int64_t inputs = 0;         // batch, results, tables, the caches of samples, scales of eight bits
  std::int64_t context = 0;        // the driver's, and the libraries' kernels
  std::int64_t arena = 0;          // memory_gib of a run; its parts are in all kinds above but context
  std::int64_t host_arena =
      0;  // of values in the host's memory beyond results; not in the total, which is the device's
  std::int64_t total() const {
    return masters + working_copies + gradients + moments + averages + gathered + activations + workspace +
           communication + inputs + context;
  }
};

// Values of one name in all layers together: "gate_up", 18 of them.
struct NamedBytes {
  std::string name;
  std::int64_t count = 0, bytes = 0;  // of all of them
};

struct Expected {
  double step_seconds = 0;
  double tokens_per_s = 0, mfu = 0, mfu_palm = 0;  // of real tokens
};

// One way to run: rows of a micro-batch, micro-batches of a step, recompute.
struct Setting {
  std::int64_t batch_size = 0, accumulate = 0;
  std::string recompute;
  std::int64_t rows() const { return batch_size * accumulate; }  // of a step
  auto operator<=>(const Setting&) const = default;
};
// "32 rows x 3 with recompute mlp".
std::string in_words(const Setting& setting, std::string_view before_recompute = " with ");

Setting setting_of(const config::Config& config);
// The configuration with the setting in its place. Where a step has other rows than before, learning rates follow the
// root of their ratio.
config::Config with_setting(const config::Config& config, const Setting& setting);

// Of one rank; on several, of the one that owns most.
struct Plan {
  Setting setting;
  dist::Mode mode = dist::Mode::ddp;
  int ranks = 1;
  int shards = 0;  // ranks that share out one copy of the state; 0: all, or nothing is shared out
  std::int64_t parameters = 0, active_parameters = 0;  // with and without the experts that a token does not go to
  std::int64_t tokens_per_step = 0;
  FlopParts flops;  // a token
  MemoryKinds memory;
  std::int64_t checkpoint = 0;        // bytes of one on the disk
  std::int64_t snapshot = 0;          // bytes of the copy of the state that a checkpoint is written from
  std::int64_t snapshot_on_host = 0;  // of them in the host's memory, not counted here: all, or of what lies there
  bool snapshot_on_device = false;    // the rest is on the device
  bool takes_device_to_save() const { return snapshot_on_device && snapshot_on_host < snapshot; }
  bool fits = false;
  std::vector<NamedBytes> largest;  // activations, at the moment when most are alive
  std::string peak_node;
  Expected expected;  // tokens of all ranks
  RankStep times;     // of which its step is made
};
// `filling`: what the rows hold, of which `expected` and `times` alone depend.
Plan make_plan(const config::Config& config, const Machine& machine, const Spread& spread = {},
               const Filling& filling = {});
// The configuration as the machine can run it: fp8 is dropped on a card without it.
config::Config as_possible(const config::Config& config, const Machine& machine);

// A training step divided into parts, each with its time and its floor, the least time the machine could take for it.
// Times come from the plan, or from timed nodes.
enum class StepPart {
  products,
  attention,
  memory_bound,
  head,
  update,
  communication,
  copies,
  launches,
  data,
  evaluation,
  sampling,
  saving,
};
inline constexpr std::array<std::string_view, 12> kStepParts = {"products", "attention",     "memory-bound", "head",
                                                                "update",   "communication", "copies",       "launches",
                                                                "data",     "evaluation",    "sampling",     "saving"};

// The part that a node belongs to, by the name of its op.
StepPart part_of(std::string_view op);

struct PartTime {
  double ms = 0;
  double floor_ms = 0;  // the longer of products at the peak and bytes at the copy rate; 0: no step needs it
  double loss_ms() const { return ms > floor_ms ? ms - floor_ms : 0; }
};

struct StepParts {
  std::array<PartTime, kStepParts.size()> of{};
  PartTime& operator[](StepPart part) { return of[static_cast<std::size_t>(part)]; }
  const PartTime& operator[](StepPart part) const { return of[static_cast<std::size_t>(part)]; }
  double ms() const;
};

// The plan's times of a step, in ms over all of its micro-batches.
struct PlannedStep {
  StepParts parts;             // products to launches: copies as far as they are waited for, and what is between nodes
  double mlp_ms = 0;           // in the products of the MLP
  double node_by_node_ms = 0;  // more, where every node is launched by itself
  double evaluation_ms = 0;    // of one batch that is evaluated
};
PlannedStep planned_step(const config::Config& config, const Machine& machine, const Filling& filling = {});

// A node that was timed.
struct TimedNode {
  std::string_view op, phase;
  double ms = 0, floor_ms = 0;
};
void add_timed(StepParts& parts, const TimedNode& node);

}  // namespace redline::perf
