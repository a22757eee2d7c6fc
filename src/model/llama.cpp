// LLaMA 2 and 3: grouped queries, tied or untied head, RoPE with or without scaling, no biases.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

constexpr std::string_view kLlamaKeys[] = {"mlp_bias", "pretraining_tp"};

void write_llama_keys(const config::Model&, io::Json& json) {
  json["mlp_bias"] = false;
  json["pretraining_tp"] = 1;
}

}  // namespace

extern const Family kLlama{.name = "llama",
                           .hf_architecture = "LlamaForCausalLM",
                           .hf_model_type = "llama",
                           .hf_defaults = {.whole_heads = true},
                           .hf_keys = kLlamaKeys,
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .write_hf = write_llama_keys};

}  // namespace redline::model
