// LLaMA 2 and 3: grouped queries, tied or untied head, RoPE with or without scaling, as a rule no biases.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

constexpr std::string_view kLlamaKeys[] = {"mlp_bias", "pretraining_tp"};

void write_llama_keys(const config::Model& m, io::Json& json) {
  json["mlp_bias"] = m.mlp_bias;
  json["pretraining_tp"] = 1;
}

}  // namespace

extern const Family kLlama{.name = "llama",
                           .hf_architecture = "LlamaForCausalLM",
                           .hf_model_type = "llama",
                           .decoder = {.attention_bias = true, .mlp_bias = true},
                           .hf_defaults = {.whole_heads = true},
                           .hf_keys = kLlamaKeys,
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .write_hf = write_llama_keys};

}  // namespace redline::model
