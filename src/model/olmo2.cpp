// OLMo-2: a norm after each branch instead of before it, and an RMSNorm over all queries and one over all keys. The
// residual stream itself is what a branch reads.
#include "model/family.h"
#include "program/builder.h"

namespace redline::model {
namespace {

// h = h + norm(attention(h));  h = h + norm(mlp(h));  and a last norm.
ForwardValues forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                      const program::BatchValues& in) {
  using program::Part;
  const float eps = static_cast<float>(m.norm_eps);
  program::ValueId h = embed_tokens(b, m, values, in);
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
    const DecoderLayer layer(b, m, values, in, i);
    b.at(Part::attention, i);
    h = b.norm_add(h, layer.attention(h), layer.parameter("attention norm"), eps, "attention norm");
    b.at(Part::mlp, i);
    h = b.norm_add(h, layer.mlp(h), layer.parameter("mlp norm"), eps, "mlp norm");
  }
  return final_norm(b, m, values, h, program::kAbsent);
}

}  // namespace

extern const Family kOlmo2{.name = "olmo2",
                           .hf_architecture = "Olmo2ForCausalLM",
                           .hf_model_type = "olmo2",
                           .decoder = {.qk_norm = ops::NormOver::projection,
                                       .attention_norm = "post_attention_layernorm.weight",
                                       .mlp_norm = "post_feedforward_layernorm.weight",
                                       .norm_after = true},
                           .hf_defaults = {.norm_eps = 1e-5, .pad_token = 1},
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = forward};

}  // namespace redline::model
