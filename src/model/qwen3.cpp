// Qwen3 (dense): LLaMA's block with an RMSNorm over each query and key head, and a head_dim apart from hidden / heads.
#include "model/family.h"

namespace redline::model {
namespace {

void read_hf(const io::Json& json, std::string_view file, config::Model& model) {
  if (io::boolean_or(json, "use_sliding_window", false, file))
    fail_user("{}: use_sliding_window is not supported; redline attends to the whole document", file);
  if (!json.contains("head_dim") || json["head_dim"].is_null()) model.head_dim = 128;  // the family's default
  model.qk_norm = true;
}

void write_hf(const config::Model& model, io::Json& json) {
  json["use_sliding_window"] = false;
  json["sliding_window"] = nullptr;
  json["max_window_layers"] = model.layers;
  json["layer_types"] = std::vector<std::string>(static_cast<std::size_t>(model.layers), "full_attention");
}

}  // namespace

const Family kQwen3{"qwen3", "Qwen3ForCausalLM", "qwen3", decoder_table, decoder_forward, read_hf, write_hf};

}  // namespace redline::model
