// The parts of decoders of LLaMA's kind: their table of parameters, RoPE's constants, and the forward pass with a norm
// before each branch, which LLaMA and Qwen3 share. A family's DecoderDescription has the differences.
#pragma once

#include "model/family.h"

namespace redline::model {

ParameterTable decoder_table(const config::Model& m);

// "rope table", [positions, head_dim]: cos and sin of every position and frequency, stretched as model.rope_scaling
// says.
std::vector<ConstantSpec> rope_table(const config::Model& m, std::int64_t positions);

// A forward pass is embed_tokens, layers, final_norm. The branch is the value that is not yet added to the residual
// stream, or absent.
program::ValueId embed_tokens(program::Builder& b, const config::Model& m, const NamedValues& values,
                              const program::BatchValues& in);
ForwardValues final_norm(program::Builder& b, const config::Model& m, const NamedValues& values,
                         program::ValueId residual, program::ValueId branch);

// One layer: its parameters, and its two branches without the norms around them.
class DecoderLayer {
 public:
  DecoderLayer(program::Builder& b, const config::Model& m, const NamedValues& values, const program::BatchValues& in,
               std::size_t index);

  program::ValueId parameter(std::string_view name) const;  // "mlp norm" of this layer
  program::ValueId attention(program::ValueId x) const;
  program::ValueId mlp(program::ValueId x) const;

 private:
  program::Builder& b_;
  const config::Model& m_;
  const NamedValues& values_;
  const program::BatchValues& in_;
  std::size_t index_;
};

// h = h + attention(norm(h));  h = h + mlp(norm(h));  and a last norm.
ForwardValues pre_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                               const program::BatchValues& in);

}  // namespace redline::model
