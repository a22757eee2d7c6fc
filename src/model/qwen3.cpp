// Qwen3 (dense): LLaMA's block with an RMSNorm over each query and key head, and a head_dim apart from hidden / heads.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

void refuse_sliding_window(const io::Json& json, std::string_view file) {
  if (io::boolean_or(json, "use_sliding_window", false, file))
    fail_user("{}: use_sliding_window is not supported; redline attends to the whole document", file);
}

void write_qwen3_keys(const config::Model& model, io::Json& json) {
  json["use_sliding_window"] = false;
  json["sliding_window"] = nullptr;
  json["max_window_layers"] = model.layers;
  json["layer_types"] = std::vector<std::string>(static_cast<std::size_t>(model.layers), "full_attention");
}

}  // namespace

extern const Family kQwen3{.name = "qwen3",
                           .hf_architecture = "Qwen3ForCausalLM",
                           .hf_model_type = "qwen3",
                           .decoder = {.qk_norm = ops::NormOver::head},
                           .hf_defaults = {.head_dim = 128, .kv_heads = 32, .positions = 32768},
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .check_hf = refuse_sliding_window,
                           .write_hf = write_qwen3_keys};

}  // namespace redline::model
