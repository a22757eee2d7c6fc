// A model lowered for one shape of batch: the programs a run needs over one table of values, with their memory planned.
// No device and no memory are touched, so anything can be asked of a run before it exists.
#pragma once

#include <string_view>

#include "config/config.h"
#include "data/batch.h"
#include "device/device.h"
#include "model/parameters.h"
#include "program/builder.h"
#include "program/executor.h"
#include "program/program.h"

namespace redline::model {

// The programs of a lowered model, by name.
inline constexpr std::string_view kFirst = "first";            // micro-step: writes gradients
inline constexpr std::string_view kAccumulate = "accumulate";  // micro-step: adds to them
inline constexpr std::string_view kUpdate = "update";
inline constexpr std::string_view kRefresh = "refresh";    // working copies from parameters, where there are any
inline constexpr std::string_view kEvaluate = "evaluate";  // loss only
inline constexpr std::string_view kLogits = "logits";      // the whole logits

struct LoweringOptions {
  data::BatchShape batch;
  bool training = true;           // micro-steps and update: gradients and moments exist
  bool accumulate = true;         // the accumulating micro-step as well; off where a step is one micro-batch
  bool logits = false;            // the logits program and its output
  DType compute = DType::f32;     // of activations and products; any other keeps working copies of the parameters
  std::int64_t loss_chunk = 512;  // rows of logits that exist at a time
  program::Recompute recompute = program::Recompute::none;
  bool attention_workspace = false;  // room for a library's attention kernel
  config::Optim optim;
  std::uint64_t seed = 0;                   // of dropout
  program::ExecutorOptions execution = {};  // how the programs run
};

// What a configuration asks for on a kind of device: the one place that says which device computes in what.
// precision.matmul counts on a GPU and not on the CPU; what a GPU cannot do yet is a UserError.
data::BatchShape batch_shape(const config::Config& config);
LoweringOptions lowering_options(const config::Config& config, device::Kind kind);

// The flat arrays that hold every parameter.
enum class Flat { parameters, gradients, moment1, moment2 };

struct LoweredModel {
  ParameterTable table;
  FlatLayout layout;
  program::ProgramSet set;
  program::BatchValues batch;
  program::ValueId flat[4];  // by Flat; only parameters exist without training
  program::ValueId working;  // [N] in the compute type; absent where that is fp32
  program::ValueId step_state, update_result, losses, loss_sum, logits;

  program::ValueId at(Flat which) const { return flat[static_cast<int>(which)]; }
};

LoweredModel lower(const config::Model& model, const LoweringOptions& options);

// FLOPs of a micro-step on a batch with that many real tokens and score pairs, as MFU counts them.
double model_flops(const LoweredModel& lowered, const data::BatchShape& shape, double real_tokens, double score_pairs);

}  // namespace redline::model
