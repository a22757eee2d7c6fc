// Mistral: LLaMA's block, every layer with a window, or none where sliding_window is null.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

void write_mistral_keys(const config::Model& m, io::Json& json) {
  json.erase("attention_bias");  // transformers' Mistral has no such key
  json["sliding_window"] = m.window > 0 ? io::Json(m.window) : io::Json(nullptr);
}

}  // namespace

extern const Family kMistral{.name = "mistral",
                             .hf_architecture = "MistralForCausalLM",
                             .hf_model_type = "mistral",
                             .decoder = {.windows = WindowedLayers::every_layer},
                             .hf_defaults = {.kv_heads = 8, .positions = 131072, .window = 4096},
                             .table = decoder_table,
                             .constants = rope_table,
                             .forward = pre_norm_forward,
                             .write_hf = write_mistral_keys};

}  // namespace redline::model
