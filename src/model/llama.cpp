// LLaMA 2 and 3: grouped queries, tied or untied head, RoPE with or without `llama3` scaling, no biases.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

void refuse_mlp_bias(const io::Json& json, std::string_view file) {
  if (io::boolean_or(json, "mlp_bias", false, file))
    fail_user("{}: mlp_bias is not supported; redline's linears have no bias", file);
}

void write_llama_keys(const config::Model&, io::Json& json) {
  json["mlp_bias"] = false;
  json["pretraining_tp"] = 1;
}

}  // namespace

extern const Family kLlama{.name = "llama",
                           .hf_architecture = "LlamaForCausalLM",
                           .hf_model_type = "llama",
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .check_hf = refuse_mlp_bias,
                           .write_hf = write_llama_keys};

}  // namespace redline::model
