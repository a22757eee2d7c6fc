// A model lowered for one shape of batch and bound to a device: its programs, its memory, and the few calls that
// training, evaluation and inference make.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/step_state.h"
#include "config/config.h"
#include "data/batch.h"
#include "device/device.h"
#include "io/safetensors.h"
#include "model/fp8_linears.h"
#include "model/lowering.h"
#include "program/executor.h"
#include "program/planner.h"

namespace redline::model {

// The times of steps, by the device's own clock. They do not depend on the host's work, nor on when it asks.
struct StepTime {
  double seconds = 0;  // from the end of the step before to the end of this one
  double working = 0;  // of them in its own programs; in the rest the device stood still, or did something else
};

// Steps follow each other; several may be under way.
class StepClock {
 public:
  explicit StepClock(device::Device& device);

  void restart();  // the next step's time begins here, after all steps were taken; programs begun are forgotten
  void begin();    // a program of the step that comes next
  void end();
  void finish();                                // the step, with the end of its last program
  StepTime take();                              // of the oldest step that was not taken; waits for its end
  void wait_for_all_but(std::size_t programs);  // the last ones of the step that has begun

 private:
  using Span = std::size_t;
  struct Step {
    Span before;  // its end is the end of the step before
    std::vector<Span> programs;
  };
  Span unused();

  std::unique_ptr<device::Spans> spans_;
  std::deque<Step> finished_;   // and not taken
  std::vector<Span> programs_;  // of the step that has begun
  Span last_ = 0;               // its end is where the next step's time begins
  std::vector<Span> unused_;
  Span made_ = 1;
};

// How many bytes of weights have been read, of how many.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t of)>;

class Engine {
 public:
  Engine(const config::Model& model, const LoweringOptions& options, device::Device& device);
  Engine(const config::Model& model, const LoweringOptions& options, LoweredModel lowered, device::Device& device);
  ~Engine();

  const config::Model& model() const { return model_; }
  const ParameterTable& table() const { return lowered_.table; }
  const FlatLayout& layout() const { return lowered_.layout; }
  const data::BatchShape& batch_shape() const { return options_.batch; }
  const program::ProgramSet& programs() const { return lowered_.set; }
  const LoweredModel& lowered() const { return lowered_; }
  const LoweringOptions& options() const { return options_; }
  program::Executor& executor() { return *executor_; }
  device::Device& device() { return device_; }

  void initialise(std::uint64_t seed);         // parameters from their table, the rest of the state zero
  std::vector<Tensor> state();                 // one for each row of the state table, in the memory of its value
  bool on_host(program::ValueId value) const;  // the host may use its memory itself, without copies

  // Reads tensors of files into their targets and converts them on the way: directly into memory of the host, else
  // through windows. Damaged bytes are a UserError. (weights.cpp)
  struct Target {
    std::size_t row = 0;                   // of the state table
    std::int64_t first = 0;                // element of its array
    std::int64_t begin = 0, elements = 0;  // elements of the tensor that go there; other ranks have the rest
  };
  struct FileToLoad {
    const io::WeightFiles::File* file = nullptr;
    std::vector<const io::StoredTensor*> tensors = {};  // in the file's order
    std::vector<Target> targets = {};                   // one for each
    bool rest = true;  // also check hashes of parts that no rank loads (io::TensorStream::rest)
  };
  void load(std::span<const FileToLoad> files, const LoadProgress& progress = {});

  // A batch of this rank, or of the ranks that share its rows: each has the tokens of counts_here().
  void upload(const data::Batch& batch);
  data::TokenCounts counts_here(const data::Batch& batch) const {
    return batch.part(options_.sharing.part(), options_.sharing.sequence);
  }
  // Sets the values that micro_step and update read from device memory. `step` counts from 0; `average` is the share of
  // the weights in their average (optim/adamw.h).
  void set_step(std::uint64_t step, double lr, const StepCounts& counts, std::uint64_t first_token, double average = 1);
  void set_step(std::uint64_t step, double lr, double pairs, std::uint64_t first_token, double average = 1) {
    set_step(step, lr, StepCounts{.pairs = pairs}, first_token, average);
  }
  // Calls calibrate() first where operands in eight bits have no scales yet. `last`: the last micro-step of the step,
  // after which ranks have their gradients added up.
  void micro_step(bool first, bool last = true, program::NodeTimer* timer = nullptr,
                  const program::NodeWatch& watch = {});
  // The same with a look at the values in eight bits; waits for it. (fp8_linears.cpp)
  std::vector<Fp8Seen> watched_micro_step(bool first, bool last = true);
  // Takes scales from the uploaded batch, in two passes over it. Nothing else of a later step changes. Returns whether
  // they were over the batch as it is: documents of more than kCalibratedTokens are cut for them, into the shortest
  // pieces of at least so many tokens that the batch has room for. Scales come from the largest magnitudes of single
  // tokens, of which pieces have as many, so that linears see what they would have seen. Attention, whose work grows
  // with the square of a document, took nearly all of two passes over whole rows of 131,072 tokens.
  static constexpr std::int64_t kCalibratedTokens = 4096;
  bool calibrate();
  // Where updates are late (LoweredModel::late_state), the next first micro-step makes it, or whatever else comes
  // next and would see the difference. With a timer it is made at once.
  void update(program::NodeTimer* timer = nullptr);
  void finish_update();  // makes one that has still to be made
  // update() with a look at the norms of all tensors, where they were lowered; norm_sums() waits for it. After the
  // first of several micro-steps, small_gradient() takes the norm of the gradient so far, over so many pairs.
  void update_with_norms();
  void small_gradient(std::uint64_t step, double pairs);
  NormSums norm_sums();
  // While it lives, evaluate() uses the average of the weights, which stands in their place. Until it goes no program
  // may touch the weights, and no state may be read: both are errors.
  class [[nodiscard]] ShownAverage {
   public:
    explicit ShownAverage(Engine& engine);
    ~ShownAverage();
    ShownAverage(const ShownAverage&) = delete;
    ShownAverage& operator=(const ShownAverage&) = delete;

   private:
    Engine& engine_;
  };
  ShownAverage show_average() { return ShownAverage(*this); }
  // Waits for the result. Parameters that are not finite must not be saved: they would be loaded again and again.
  bool parameters_finite();
  double evaluate();  // sum of the uploaded batch's losses
  // Makes weights that ranks update by parts whole on every rank; all ranks call it. evaluate(), logits() and a step do
  // so themselves. Does nothing where no update came since.
  void gather_weights();
  // From here on micro_step() and evaluate() throw Interrupted where the flag is set; update() never does. A step that
  // is dropped before its update has changed no state.
  void drop_on(const StopFlag* stop) { stop_ = stop; }
  // Runs the programs of a micro-step once for each kind of batch, on `batch` and on one of the other kind. A card then
  // chooses, tunes and captures before the first step. Only gradients and losses change, and scales where there are
  // none yet. Where a micro-step has more FLOPs than `most`, some tenths of a second of a fast card, only the first of
  // them runs, or two passes over cut documents where scales have to be found (calibrate()), and the others are left to
  // the steps that need them: a start does not grow with the rows.
  static constexpr double kRehearsedFlops = 2e14;
  void rehearse(const data::Batch& batch, double most = kRehearsedFlops);
  std::vector<float> logits();                    // [tokens, vocab] of the uploaded batch
  void continue_texts(std::string_view program);  // kPrefill or kDecode, over whole weights (model/generate.h)

  double loss_sum();                    // of the micro-steps since the last first one
  std::vector<double> router_totals();  // the same of routers; of this rank, until the update
  // Sends a step's loss sum and the result of its update to the host; take_result() waits for the oldest that was sent.
  // Two may be under way.
  struct StepResult {
    double loss_sum = 0;
    UpdateResult update;
    StepTime time;
    std::vector<double> router = {};  // totals of ops/experts.h, of all ranks; empty: no layer has experts
  };
  void post_result();
  StepResult take_result();
  StepClock& clock() { return clock_; }

  // Copies the saved rows as the queued work leaves them, where that was planned (add_snapshot) and there is memory for
  // it: has_snapshot() waits for memory that comes late (program::ExecutorOptions), and begin_snapshots() has it made
  // meanwhile. Work that would change a row waits for its copy. No thread may be reading the copies.
  void begin_snapshots() { executor_->begin_snapshots(); }
  bool has_snapshot() { return !lowered_.snapshot.empty() && executor_->has_snapshots(); }
  void take_snapshot();
  bool changes_saved_rows(std::string_view program) const;  // it waits for copies of them that are under way

  // FLOPs of this rank for a batch as MFU counts them; model_flops_palm counts T * tokens pairs instead of the mask's,
  // as PaLM does.
  double model_flops(const data::Batch& batch) const;
  double model_flops_palm(const data::Batch& batch) const;

 private:
  void place(const data::Batch& batch);  // in the memory that programs read
  void refresh();                        // the working copies, where there are any
  void start_average();                  // from the parameters, where there is one
  void forget_records();                 // of magnitudes, from which scales would move
  void forget_scales();
  void forget(optim::StateKind kind);  // sets arrays to zero
  void keep_snapshot();                // work from here on may change saved rows: it waits for copies of them
  void wait_for_snapshot();            // that was taken last, if any was
  bool updates_by_parts() const;       // each rank updates a part of the weights, and the others get it later
  // The one way to run a program: it sees to what the program asks for, and notes what it leaves (engine.cpp has the
  // table). `timed`: it is a part of the step.
  struct Look {
    program::NodeTimer* timer = nullptr;
    program::NodeWatch watch = {};
    bool timed = false;
  };
  void run(std::string_view program, const Look& look);
  void run(std::string_view program) { run(program, {}); }

  config::Model model_;
  LoweringOptions options_;
  LoweredModel lowered_;
  std::unique_ptr<program::Executor> executor_;
  device::Device& device_;
  program::ModelFlops flops_;  // of a micro-step; nothing without training
  StepClock clock_;
  const StopFlag* stop_ = nullptr;
  bool whole_ = true;                            // no rank has updated its part of the weights since the others got it
  bool calibrated_ = true;                       // or nothing is cast to eight bits
  std::optional<data::Batch> given_;             // that was uploaded last, where scales have still to come from it
  bool late_ = false;                            // the last update has still to be made
  bool averaged_ = false;                        // the average stands in the weights' place
  std::set<std::string, std::less<>> changing_;  // programs that write saved rows
  bool copying_ = false;                         // saved rows, and no work has waited for it yet
  std::size_t posted_ = 0, taken_ = 0;           // results
};

// The parameters by Hugging Face name. A missing, superfluous or misshapen tensor is a UserError that names it. The
// result points into `weights`.
std::vector<Engine::FileToLoad> weights_to_load(const Engine& engine, const io::WeightFiles& weights);
// The rows of the state table in one file of a checkpoint. A tensor that is missing or does not fit is a UserError.
Engine::FileToLoad state_to_load(const Engine& engine, const io::WeightFiles::File& file, std::string_view name);
// Loads weights. A file whose hash differs from its manifest's is a UserError as well.
void load_weights(Engine& engine, const io::WeightFiles& weights, const LoadProgress& progress = {});

}  // namespace redline::model
