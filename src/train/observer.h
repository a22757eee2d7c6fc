// The events of a run, while it happens. train/ defines them, report/ listens, cli/ connects the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/left_out.h"
#include "base/overloaded.h"
#include "config/config.h"
#include "data/pieces.h"
#include "data/pipeline_stats.h"
#include "device/gpu_monitor.h"
#include "dist/sharing.h"
#include "model/fp8_linears.h"
#include "model/lowering.h"
#include "program/program_set.h"
#include "train/goodput.h"

namespace redline::train {

// Known before the first step.
struct RunHeader {
  const config::Config* config = nullptr;
  Path folder;
  std::string device;                                           // "CPU (2 threads, Neoverse-V1)"
  std::string data;                                             // "ping (generated)"
  std::optional<data::EpochSize> training_data, held_out_data;  // where their size is known
  std::int64_t data_vocabulary = 0;                             // of the data's tokenizer; 0: nothing tells
  std::vector<std::string> trained_on;  // names of the sets that are evaluated and trained on, and so not held out
  bool loss_trained_on = false;         // the first of the sets, whose loss is the run's, is one of them
  std::optional<double> epochs;         // of the training data in the whole run; empty where they never end
  bool card = false;                    // whether the device is a GPU
  std::int64_t device_memory = 0;       // bytes, in all
  std::int64_t parameters = 0, active_parameters = 0;  // with and without the experts that a token does not go to
  std::int64_t steps = 0;              // of the whole run; 0: train.max_hours decides, and it is not known yet
  std::int64_t first_step = 0;         // > 0: resumed, this many steps are done
  std::optional<double> seconds_left;  // of train.max_hours
  std::int64_t tokens_per_step = 0;    // slots: batch_size * seq_len * accumulate, of all ranks
  dist::Sharing sharing = {};          // of ranks
  std::string engine = {};             // connects them: "shared memory"
  std::string restart = {};            // "restart 1 by torchrun": of a run that its launcher started again
  const program::MemoryPlan* memory = nullptr;
  bool batch_was_chosen = false;       // by train.batch_size = "auto": a larger one is slower here, or does not fit
  std::string fp8;                     // the products in fp8: "11 of 12 products; bf16: out/weight"
  double peak_flops = 0;               // the yardstick of MFU
  std::string peak_source;             // "measured: product of 1024^3 in fp32"
  std::vector<LeftOut> left_out = {};  // parts that this program lacks and this machine could use
  std::shared_ptr<const Goodput> goodput = {};  // of this session, as it goes on

  bool nothing_left() const { return steps > 0 && first_step >= steps; }  // no step will be made
};

// The name of an evaluation's loss: data that training reads, too, are not held out.
constexpr std::string_view evaluated_loss(bool trained_on) {
  return trained_on ? "loss on training data" : "held-out loss";
}

// The findings of a look at the tensors in eight bits (log.fp8_every).
struct Fp8Observation {
  std::vector<model::Fp8Seen> tensors;
  std::optional<double> saturated, zero;                 // the largest shares
  std::optional<std::string> most_saturated, most_zero;  // whose they are

  explicit Fp8Observation(std::vector<model::Fp8Seen> seen);
};

// The findings of a look at the norms of all tensors (log.norms_every).
struct NormsObservation {
  std::vector<model::TensorNorm> tensors;  // in the order of the parameter table
  std::optional<double> weight, update;    // norms of all together; the update's where it is known
  std::optional<double> noise_scale;       // tokens, from gradients of two sizes, over the last looks

  explicit NormsObservation(std::vector<model::TensorNorm> norms);
};

// What the routers of a step did. Loads are shares of tokens: 1 is an even one, 0 none.
struct RouterObservation {
  std::optional<double> balance, z_loss, entropy;        // entropy: the mean over layers
  std::optional<double> largest_load, smallest_load;     // of all experts of all layers
  std::shared_ptr<const model::RouterFigures> by_layer;  // at steps that were looked at (log.router_every)

  explicit RouterObservation(model::RouterFigures figures, bool look);
};

// How ranks keep up with each other.
struct RankPaces {
  std::optional<double> wait_ms;                // of the step: rank 0's wait for others
  std::optional<std::int64_t> slowest;          // the slowest rank, without its waits,
  std::optional<double> slowest_ms, median_ms;  // its time, and the median
};

// An evaluation's findings on one set of held-out documents (data.eval).
struct HeldOutLoss {
  std::string name;
  double loss = 0;
  std::optional<double> bits_per_byte;  // where the bytes of the text are known
  std::int64_t tokens = 0;              // that the loss covers
};

// One row of metrics.jsonl. report/metrics.h says of each member what it is, its unit and how it is shown.
struct StepMetrics {
  std::int64_t step = 0;  // counted from 1: this many updates are done
  double time = 0, loss = 0, grad_norm = 0, lr = 0, step_ms = 0, device_ms = 0, idle_ms = 0;
  std::int64_t tokens = 0;
  std::optional<double> epoch;  // where the training data have an end, and a length that is known
  double tokens_per_s = 0, padding = 0, tflops = 0, mfu = 0, mfu_palm = 0, data_wait_ms = 0;
  std::optional<std::int64_t> truncated_tokens;  // where data.long_documents = "truncate"
  std::optional<double> learned;                 // share of the documents' tokens, where some are context only
  double memory_gib = 0;
  std::optional<double> eval_loss;          // where the step was followed by an evaluation
  std::optional<double> eval_loss_average;  // the same of the average of the weights, where there is one
  std::optional<device::GpuSample> gpu;     // the newest one; where the card can be watched
  std::optional<Fp8Observation> fp8;        // of the step's first micro-batch, where it was looked at
  std::optional<NormsObservation> norms;    // where the step's tensors were looked at
  std::optional<RouterObservation> router;  // where layers have experts
  double goodput = 0;
  std::optional<Account> account;            // of the session so far, every few seconds
  std::int64_t skipped = 0, rollbacks = 0;   // of the run so far (train/guard.h)
  std::optional<RankPaces> ranks;            // where there are several
  std::optional<double> eval_bits_per_byte;  // beside eval_loss, where the bytes of the text are known
  std::optional<std::int64_t> eval_tokens;   // beside it: held-out tokens that it covers
  std::vector<HeldOutLoss> eval_sets;        // beside it, where data.eval names sets: all of them
  std::vector<data::SourceShare> sources;    // of a mixture, every few seconds and at evaluations

  // Takes the losses of an evaluation that followed the step; an empty list changes nothing.
  void take(std::vector<HeldOutLoss> losses, bool named) {
    if (losses.empty()) return;
    eval_loss = losses[0].loss;
    eval_bits_per_byte = losses[0].bits_per_byte;
    eval_tokens = losses[0].tokens;
    if (named) eval_sets = std::move(losses);
  }
};

// The texts that the model wrote after a step (train.sample_every).
struct SampledText {
  std::string prompt, text;
};

// The events, in about the order in which a run tells them.
struct Loading {
  std::uint64_t bytes = 0, of = 0;  // weights
};
struct Counting {  // the training data, for train.epochs
  data::EpochSize so_far;
  std::optional<double> share = {};  // of them, where it is known
};
struct Started : RunHeader {};
struct Evaluating {
  std::int64_t batch = 0, batches = 0;  // progress within an evaluation
};
struct Evaluated {
  std::int64_t step = 0;
  double loss = 0;
  double time = unix_seconds();              // of the event
  std::optional<double> bits_per_byte = {};  // where the bytes of the text are known
  std::int64_t tokens = 0;                   // that the loss covers
  std::vector<HeldOutLoss> sets = {};        // where data.eval names sets: all of them, the first that of `loss`
};
struct Stepped : StepMetrics {};
struct Sampled {
  std::int64_t step = 0;
  std::vector<SampledText> texts;
  double time = unix_seconds();
};
struct Pipeline : data::PipelineStats {  // every few seconds where data.debug is on
  double time = unix_seconds();
};
struct BeforeCheckpoint {};  // sinks write all events so far to the disk, where they can
struct Saved {
  std::int64_t step = 0;  // of the saved state; later steps may have been made meanwhile
  Path folder;
  double seconds = 0, held = 0;  // until it was whole; of them, those in which training stood still
  double time = unix_seconds();
};
struct Sentence {
  std::string text;
  double time = unix_seconds();
};
struct Note : Sentence {};     // e.g. "resumed from step 40"
struct Warning : Sentence {};  // e.g. a damaged checkpoint that was passed over
struct Planned : Note {        // the number of the run's steps has changed since the header
  std::int64_t steps = 0;
};
// An update was not made, and the run goes on. Listeners to warnings hear it as one.
struct Skipped : Warning {
  std::int64_t step = 0;
  std::string_view reason;               // "not finite", "spike"
  double loss = 0, norm = 0, limit = 0;  // limit: of the norm; 0: it had none
  std::vector<std::int64_t> documents;   // of its batches, each once
};
// The batches of a step that a run passes over.
struct PassedBatch {
  std::int64_t draw = 0;  // counted from 0
  std::vector<std::int64_t> documents;
};
// The run has gone back to a checkpoint: steps after it are made anew.
struct RolledBack : Warning {
  std::int64_t from = 0, to = 0;  // steps
  std::vector<PassedBatch> passed_over;
};
// How a run ended: "200 steps done, held-out loss 3.1416". report/console.h puts the figures into the sentence.
struct Finished : Sentence {
  bool stopped = false;                 // by a signal
  bool resumed = false;                 // earlier sessions made steps too
  std::int64_t steps = 0, tokens = 0;   // made by this session; trained on by the whole run
  double seconds = 0;                   // of this session; 0: it trained nothing
  std::optional<Account> account = {};  // of the whole session
};
struct Failed : Sentence {};  // the error that ended the run, from whoever catches it
using Event = std::variant<Loading, Counting, Started, Evaluating, Evaluated, Stepped, Sampled, Pipeline,
                           BeforeCheckpoint, Saved, Note, Planned, Warning, Skipped, RolledBack, Finished, Failed>;

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on(const Event& event) = 0;
};

// Calls the one of `heard` that takes the event: hear(event, [&](const Stepped& m) { ... }, ...). Others pass by.
template <class... Heard>
void hear(const Event& event, Heard... heard) {
  const overloaded all{std::move(heard)...};
  std::visit(
      [&]<class E>(const E& e) {
        if constexpr (std::is_invocable_v<decltype(all), const E&>) all(e);
      },
      event);
}

}  // namespace redline::train
