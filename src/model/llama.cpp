// LLaMA 2 and 3: grouped queries, tied or untied head, RoPE with or without `llama3` scaling, no biases.
#include "model/family.h"

namespace redline::model {
namespace {

void read_hf(const io::Json& json, std::string_view file, config::Model& model) {
  if (io::boolean_or(json, "mlp_bias", false, file))
    fail_user("{}: mlp_bias is not supported; redline's linears have no bias", file);
  if (!json.contains("head_dim") || json["head_dim"].is_null()) {
    if (model.hidden % model.heads)
      fail_user("{}: hidden_size {} is not a multiple of num_attention_heads {}", file, model.hidden, model.heads);
    model.head_dim = model.hidden / model.heads;
  }
  model.qk_norm = false;
}

void write_hf(const config::Model&, io::Json& json) {
  json["mlp_bias"] = false;
  json["pretraining_tp"] = 1;
}

}  // namespace

const Family kLlama{"llama", "LlamaForCausalLM", "llama", decoder_table, decoder_forward, read_hf, write_hf};

}  // namespace redline::model
