// A model lowered for one shape of batch: the programs a run needs over one table of values, with their memory planned.
// No device and no memory are touched, so anything can be asked of a run before it exists.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/step_state.h"
#include "config/config.h"
#include "data/batch.h"
#include "device/device.h"
#include "dist/sharing.h"
#include "model/optimizer.h"
#include "model/parameters.h"
#include "program/executor.h"
#include "program/passes.h"
#include "program/planner.h"
#include "program/program_set.h"

namespace redline::model {

// The programs of a lowered model, by name.
inline constexpr std::string_view kFirst = "first";            // micro-step: writes gradients
inline constexpr std::string_view kAccumulate = "accumulate";  // micro-step: adds to them
inline constexpr std::string_view kLast = "last";  // ranks: the last micro-step of several, which adds gradients up
inline constexpr std::string_view kOnly = "only";  // ranks: a first micro-step that is the last, where others are not
inline constexpr std::string_view kUpdate = "update";
// The same in two parts, where the optimizer's state lies in the host's memory: the norm, which ends its step, and all
// else, beside the forward pass of the next step, or by itself where something else comes next.
inline constexpr std::string_view kNorm = "norm";
inline constexpr std::string_view kUpdateAndFirst = "update and first";
inline constexpr std::string_view kFinish = "finish update";
inline constexpr std::string_view kUpdateWithNorms = "update with norms";  // the same, and looks at every tensor
inline constexpr std::string_view kSmallGradient = "small gradient";  // the gradient's norm after the first micro-step
inline constexpr std::string_view kStartAverage = "start average";    // makes it the weights
inline constexpr std::string_view kShowAverage = "show average";      // evaluation uses the average of the weights,
inline constexpr std::string_view kShowWeights = "show weights";      // or the weights again
inline constexpr std::string_view kGather = "gather";      // ranks: weights from their owners, where each has a part
inline constexpr std::string_view kCheck = "check";        // whether parameters are finite
inline constexpr std::string_view kRefresh = "refresh";    // working copies, and those in eight bits, from parameters
inline constexpr std::string_view kEvaluate = "evaluate";  // loss only
inline constexpr std::string_view kLogits = "logits";      // the whole logits
// Loss and result of a step to the host, where two steps have room at a time.
inline constexpr std::array<std::string_view, 2> kResults = {"results", "results of the other step"};
// The saved rows to their copies; and what waits for that (model/state_files.h).
inline constexpr std::string_view kSnapshot = "snapshot", kAfterSnapshot = "after snapshot";
inline constexpr std::string_view kPrefill = "prefill";  // a text into the cache, and the logits after it
inline constexpr std::string_view kDecode = "decode";    // one more token of every slot, and the logits after it

// Room for texts that are being continued (model/generate.h).
struct DecodeShape {
  std::int64_t slots = 0;      // texts at once; 0: there are no decoding programs
  std::int64_t positions = 0;  // tokens that a text may have
  std::int64_t prompt = 0;     // tokens that may be read at once
  std::int64_t rows = 0;       // of a decoding step: the slots, and rows that only keep the shape of products
};

// The decoding programs for so many texts on a kind of device. A card's library chooses its kernels by the number of
// rows, so that number is fixed there: a text must not depend on the texts beside it. The CPU's kernels take each row
// by itself.
inline constexpr std::int64_t kMostSlots = 8;
inline constexpr std::int64_t kSamplePromptTokens = 256;  // at most, of a prompt of train.sample_prompts
// `prompt`: tokens of the longest prompt; `tokens`: that may follow it; `positions`: that the model knows, at least the
// prompt's. A text that outgrows them is read again from its newer half.
DecodeShape decode_shape(device::Kind kind, std::int64_t texts, std::int64_t prompt, std::int64_t tokens,
                         std::int64_t positions);

struct LoweringOptions {
  data::BatchShape batch;
  bool training = true;           // micro-steps and update: gradients and moments exist
  bool accumulate = true;         // the accumulating micro-step as well; off where a step is one micro-batch
  bool single = false;            // and a step may be one micro-batch all the same (train.accumulate_from)
  bool logits = false;            // the logits program and its output
  DecodeShape decode = {};        // the prefill and decode programs and their caches
  DType gradients = DType::f32;   // or bf16: as they are added up over micro-batches (optim/rounded.h)
  DType masters = DType::f32;     // or bf16: parameters as training keeps them, and products read them
  DType compute = DType::f32;     // of activations and products; any other keeps working copies of the parameters
  std::int64_t loss_chunk = 512;  // rows of logits that exist at a time
  double z_loss = 0;              // train.z_loss
  program::Recompute recompute = program::Recompute::none;
  std::int64_t recompute_layers = 0;      // of the first layers; 0: of all
  config::Placement placement = {};       // which arrays lie in the host's memory
  device::Kind kind = device::Kind::cpu;  // whose kernels run the programs
  ops::ProductHow products = {};
  ops::AttentionHow attention = {};   // its documents are the programs' variants
  std::vector<std::string> fp8 = {};  // products with operands in eight bits (model/fp8_linears.h), in training alone
  bool fp8_head = false;              // and the gradients of the head
  bool fp8_fast_sums = true;          // of outputs
  config::Optim optim = {};
  double spike = 0;  // guard.spike: a norm of so many usual ones makes no update; 0: any does
  const Optimizer* optimizer = &kAdamW;
  bool average = false;                     // keep an average of the weights beside them
  bool norms = false;                       // programs that take the norms of every tensor
  std::uint64_t seed = 0;                   // of dropout
  dist::Sharing sharing = {};               // of training among ranks; `batch` is that of a group of them
  program::ExecutorOptions execution = {};  // how the programs run

  bool rounds_masters() const { return training && masters == DType::bf16; }
  // Whether products read working copies, beside the parameters.
  bool has_copies() const { return compute != DType::f32 && !rounds_masters(); }
  bool refreshes() const { return has_copies() || !fp8.empty() || fp8_head; }  // what is made from parameters
};

// The options of a configuration on a kind of device. This is the one place that decides which device computes in which
// type. precision.matmul counts on a GPU; the CPU computes in fp32, or simulates fp8. Settings that do not go together
// are a UserError.
data::BatchShape batch_shape(const config::Config& config);
std::int64_t most_rows(const config::Config& config);  // of a micro-batch, at most, whatever the memory
LoweringOptions lowering_options(const config::Config& config, device::Kind kind);

// The values that the host exchanges with the decoding programs.
struct DecodeValues {
  program::BatchValues prompt;     // one document
  program::ValueId last_row;       // [1] i32: of its last token
  program::ValueId prompt_logits;  // [1, vocab]
  program::BatchValues next;       // tokens and positions, [rows] each
  program::ValueId next_input;     // [2, rows] i32: both of them
  program::ValueId next_logits;    // [rows, vocab]
  program::ValueId slot_logits;    // [slots, vocab]: those that count
};

// A tensor that is cast to eight bits in training.
struct Fp8Tensor {
  std::string name;        // "layer 3/qkv input"
  program::ValueId scale;  // ops::Fp8Scale
  program::ValueId amax;   // recorded by a step; absent: its scale follows the tensor itself
  program::ValueId copy;   // where it persists
};

// A step's results in the host's memory.
struct ResultValues {
  program::ValueId loss_sum, update, router;
};

// The values that a look at the norms of all tensors writes (log.norms_every).
struct NormValues {
  program::ValueId bounds;                       // [tensors, 2] i64
  program::ValueId gradients, weights, updates;  // [tensors] f64 each: sums of squares
  program::ValueId small;                        // UpdateResult of the first micro-step's gradient
  bool has_updates = false;                      // else a copy of the weights would enlarge the arena
};

struct LoweredModel {
  ParameterTable table;
  FlatLayout layout;
  program::ProgramSet set;
  program::BatchValues batch;
  optim::StateTable state;                     // without training, the parameters and values made from them
  std::vector<program::ValueId> state_values;  // one for each row
  Shards shards;                               // of the parameters among the ranks that hold a copy of them
  Range updated;                               // this rank's part of them, which it updates: in ddp all
  Range own;                                   // of that, what no other rank answers for
  bool first_gathers_all = true;               // zero1: weights are whole after `first`; else those that it uses are
  program::ValueId step_state, update_result, check_result, losses, loss_sum, logits;
  program::ValueId late_state;     // the step state of an update that is made in the next step; absent: none is
  program::ValueId router_totals;  // of a step's micro-batches (ops/experts.h); absent: no layer has experts
  DecodeValues decode;
  NormValues norms;
  std::vector<Fp8Tensor> fp8;
  std::int64_t piece = 0;          // elements that a node of the update has at most; 0: all of a range
  std::vector<std::int64_t> cuts;  // no piece has elements on both sides of any of these
  program::MadeCopies copies;      // working copies that have no memory of their own; absent: all have
  program::ValueId fp8_counts;     // ops::Fp8Count for every value of eight bits; absent: there is none
  std::array<ResultValues, kResults.size()> results;
  std::vector<program::ValueId> snapshot;  // by row: its copy, absent where no file has it; empty: no copy was planned

  // A range as nodes have it: whole, or in pieces where arrays come from the host's memory. No piece cuts a block.
  std::vector<Range> pieces(const Range& range) const;
  // Adds a row and its value.
  program::ValueId declare(program::Builder& b, optim::StateArray array, program::Role role);
  // The first row of that name, and its value. Where there is none: the number of rows, and an absent value.
  std::size_t row(std::string_view array) const;
  program::ValueId at(std::string_view array) const;
  // The elements of an array for a range of the parameters, as a value of the programs; absent where the array is.
  program::ValueId view(program::Builder& b, std::string_view array, const Range& range) const;
  program::ValueId gradients(program::Builder& b, const Range& range) const;  // the same of gradients, in fp32
  // The same of parameters for the nodes that move them, and what keeps them after that: where they are in bf16, they
  // are rounded at random.
  program::ValueId masters(program::Builder& b, const Range& range) const;
  void keep_masters(program::Builder& b, program::ValueId masters, const Range& range) const;
};

LoweredModel lower(const config::Model& model, const LoweringOptions& options);

// Whether moments of some layers can lie in the host's memory and others on the device: nodes of Muon have matrices of
// many layers, and of ranks one would have all of them there and another none.
inline bool cuts_moments(const LoweringOptions& o) { return o.sharing.alone() && !o.optimizer->whole; }

// Whether there are working copies that could be made where they are read: those of linears whose products in training
// are all in eight bits. A node of Muon writes matrices of many layers, whose copies are together then: of all
// matrices, and not where an update stands beside the next forward pass.
bool can_make_copies(const config::Model& model, const LoweringOptions& options);

// Whether gradients and weights can come from the host's memory a layer at a time. Ranks that keep all of them would
// send them to each other from there.
inline bool streams_layers(const dist::Sharing& s) { return s.alone() || s.mode == dist::Mode::fsdp; }

// Of the ranks that share a run, without lowering: the one whose part of the state takes most memory, and the one that
// updates most of what its optimizer needs whole, which takes longest. Where nothing is needed whole they are one.
struct LargestRanks {
  int by_memory = 0, by_update = 0;
};
LargestRanks largest_ranks(const config::Model& model, const LoweringOptions& options);
// The ranks of which one needs most memory, on the device or on the host. An update holds matrices that stay whole, so
// that a rank with less of the state may need more: the second of those two. Where some of it lies in the host's memory
// what a rank brings of a layer counts as well, and so does what it has of weights in eight bits: only looking at all
// tells, of more than 32 at some, evenly spread.
std::vector<int> fullest_ranks(const config::Model& model, const LoweringOptions& options);

// The programs of a step of so many micro-batches, in order, each with how often it runs in a row.
struct StepProgram {
  std::string_view name;
  std::int64_t times = 1;
};
std::vector<StepProgram> programs_of_step(const LoweringOptions& options, std::int64_t micro_batches);

// FLOPs of a micro-step on a batch with that many real tokens and those pairs, as MFU counts them.
double model_flops(const LoweredModel& lowered, const data::BatchShape& shape, double real_tokens,
                   const program::PairsWithin& pairs);

// Norms of gradient, weight and update of every parameter of the table (log.norms_every), and the norm of the first
// micro-batch's gradient, from which the noise scale follows. Lowering writes the nodes, the engine reads their
// results.

// The sums that one look brought to the host. Gradients are sums over pairs, as programs have them.
struct NormSums {
  std::vector<double> gradients, weights;  // sums of squares, by row of the parameter table
  std::vector<double> updates;             // the same; empty where a copy of the old weights had no room
  UpdateResult small = {};                 // norm and pairs of the first micro-batch; no pairs: not taken
};

// One tensor.
struct TensorNorm {
  std::string name;  // "layer 3/qkv"
  double gradient = 0, weight = 0;
  double update = 0;  // NaN: not known
};
std::vector<TensorNorm> tensor_norms(const ParameterTable& table, const NormSums& sums, double pairs);

// What the routers of a step did, from its totals (ops/experts.h).
struct RouterFigures {
  std::optional<double> balance, z_loss;   // means over its micro-batches, weighted by pairs; absent with none
  std::vector<std::int64_t> layers;        // those with experts
  std::vector<double> entropy;             // of each of them: a token's in the mean, in nats
  std::vector<std::vector<double>> loads;  // of each of them by expert: 1 is an even share, 0 none
};
RouterFigures router_figures(const config::Model& model, const std::vector<double>& totals, double pairs);

// The units that travel between ranks: neighbours in the flat layout whose rows say that they travel together.
std::vector<program::Distribution::Unit> travelling_units(const ParameterTable& table, const FlatLayout& layout);

// The place of each tensor in this rank's part, as TensorSums::bounds has it.
std::vector<std::int64_t> tensor_bounds(const LoweredModel& m);

}  // namespace redline::model
