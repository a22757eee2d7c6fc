// Qwen2 and 2.5: LLaMA's block with biases on queries, keys and values. Qwen3 (dense): without them, with an RMSNorm
// over each query and key head, and a head_dim apart from hidden / heads. Either may have a window in its upper layers.
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

constexpr std::string_view kQwenKeys[] = {"max_window_layers", "use_sliding_window"};
constexpr std::int64_t kMaxWindowLayers = 28;  // where config.json is silent

// Layers from max_window_layers on have the window.
void read_qwen_keys(const io::Json& json, std::string_view file, config::Model& m) {
  if (m.window == 0 || !m.layer_types.empty()) return;
  const std::int64_t first =
      json.contains("max_window_layers") ? io::integer_at(json, "max_window_layers", file) : kMaxWindowLayers;
  for (std::int64_t i = 0; i < m.layers; ++i)
    m.layer_types.emplace_back(i >= first ? kSlidingAttention : kFullAttention);
}

void write_qwen3_keys(const config::Model& m, io::Json& json) {
  write_windows(m, json);
  json["use_sliding_window"] = m.window > 0;
  json["max_window_layers"] = m.layers;
}

void write_qwen2_keys(const config::Model& m, io::Json& json) {
  write_qwen3_keys(m, json);
  json.erase("attention_bias");  // transformers' Qwen2 has no such key: its biases are always there
}

}  // namespace

extern const Family kQwen2{.name = "qwen2",
                           .hf_architecture = "Qwen2ForCausalLM",
                           .hf_model_type = "qwen2",
                           .decoder = {.qkv_bias = true, .windows = WindowedLayers::by_layer},
                           .hf_defaults = {.kv_heads = 32, .positions = 32768, .window = 4096, .window_switch = true},
                           .hf_keys = kQwenKeys,
                           .table = decoder_table,
                           .constants = rope_table,
                           .forward = pre_norm_forward,
                           .read_hf = read_qwen_keys,
                           .write_hf = write_qwen2_keys};

extern const Family kQwen3{
    .name = "qwen3",
    .hf_architecture = "Qwen3ForCausalLM",
    .hf_model_type = "qwen3",
    .decoder = {.qk_norm = ops::NormOver::head, .attention_bias = true, .windows = WindowedLayers::by_layer},
    .hf_defaults = {.head_dim = 128, .kv_heads = 32, .positions = 32768, .window = 4096, .window_switch = true},
    .hf_keys = kQwenKeys,
    .table = decoder_table,
    .constants = rope_table,
    .forward = pre_norm_forward,
    .read_hf = read_qwen_keys,
    .write_hf = write_qwen3_keys};

}  // namespace redline::model
