// LLaMA 2 and 3: grouped queries, tied or untied head, RoPE with or without `llama3` scaling, no biases. A Mistral
// without a sliding window is the same model.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

void refuse_mlp_bias(const io::Json& json, std::string_view file) {
  if (io::boolean_or(json, "mlp_bias", false, file))
    fail_user("{}: mlp_bias is not supported; redline's linears have no bias", file);
}

// Where a Mistral's config.json is silent, transformers takes a window of 4096.
void refuse_window(const io::Json& json, std::string_view file) {
  const auto it = json.find("sliding_window");
  if (it != json.end() && it->is_null()) return;
  fail_user(
      "{}: sliding_window is {}, which is not supported: redline attends to the whole document, and reads a Mistral "
      "whose sliding_window is null",
      file,
      it == json.end()          ? "left out, which means 4096"
      : it->is_number_integer() ? it->dump()
                                : it->type_name());
}

constexpr HfAlias kAliases[] = {{.architecture = "MistralForCausalLM",
                                 .model_type = "mistral",
                                 .defaults = {.kv_heads = 8, .positions = 131072},
                                 .check = refuse_window,
                                 .why = "without a sliding window Mistral computes what LLaMA does"}};

void write_llama_keys(const config::Model&, io::Json& json) {
  json["mlp_bias"] = false;
  json["pretraining_tp"] = 1;
}

}  // namespace

extern const Family kLlama{.name = "llama",
                           .hf_architecture = "LlamaForCausalLM",
                           .hf_model_type = "llama",
                           .hf_aliases = kAliases,
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .check_hf = refuse_mlp_bias,
                           .write_hf = write_llama_keys};

}  // namespace redline::model
