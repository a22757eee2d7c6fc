// The pre-norm decoder that LLaMA and Qwen3 share: its parameter table and its straight-line forward pass. What a
// family adds or forbids stands in its own file.
#pragma once

#include "config/config.h"
#include "model/parameters.h"
#include "program/builder.h"

namespace redline::model {

// The parameters as a program sees them, in the table's words.
struct LayerParams {
  program::ValueId attention_norm, qkv, q_norm, k_norm, out, mlp_norm, gate_up, down;
};
struct Params {
  program::ValueId embedding, final_norm, head;  // head is the embedding itself when tied
  std::vector<LayerParams> layers;
};

ops::HeadLayout head_layout(const config::Model& m);

ParameterTable decoder_table(const config::Model& m);

// Finds the table's rows by name among the values declared for them, in the table's order.
Params decoder_params(const config::Model& m, const ParameterTable& table, const std::vector<program::ValueId>& values);

// cos and sin of every position and frequency, [positions, head_dim]; stretched as model.rope_scaling says.
std::vector<float> rope_table(const config::Model& m, std::int64_t positions);

// Up to the last norm: what the head multiplies.
program::ValueId decoder_forward(program::Builder& b, const config::Model& m, const Params& p,
                                 const program::BatchValues& in, program::ValueId rope);

}  // namespace redline::model
