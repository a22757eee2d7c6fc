// SmolLM3: LLaMA's block, but some layers, every fourth as a rule, have no RoPE: they know positions by the mask alone.
#include <algorithm>

#include "base/error.h"
#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

constexpr std::string_view kSmolLm3Keys[] = {"mlp_bias",       "max_window_layers",
                                             "no_rope_layers", "no_rope_layer_interval",
                                             "pretraining_tp", "use_sliding_window"};

void read_smollm3_keys(const io::Json& json, std::string_view file, config::Model& m) {
  if (const auto it = json.find("no_rope_layers"); it != json.end() && !it->is_null()) {
    if (!it->is_array() || it->size() < static_cast<std::size_t>(m.layers))
      fail_user("{}: no_rope_layers must be a list with a number for each of the {} layers", file, m.layers);
    for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
      if ((*it)[i] != 0 && (*it)[i] != 1)
        fail_user("{}: no_rope_layers holds {}; it must be 1 (RoPE) or 0 (none)", file, (*it)[i].dump());
      m.rope_layers.push_back((*it)[i] == 0 ? 0 : 1);
    }
  } else if (json.contains("no_rope_layer_interval")) {
    const std::int64_t every = io::integer_at(json, "no_rope_layer_interval", file);
    if (every < 1) fail_user("{}: no_rope_layer_interval is {}; it must be at least 1", file, every);
    for (std::int64_t i = 0; i < m.layers; ++i) m.rope_layers.push_back((i + 1) % every != 0);
  }
  if (m.window == 0 || !m.layer_types.empty()) return;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i)
    m.layer_types.emplace_back(has_rope(m, i) ? kFullAttention : kSlidingAttention);
}

void write_smollm3_keys(const config::Model& m, io::Json& json) {
  write_windows(m, json);
  json["use_sliding_window"] = m.window > 0;
  json["mlp_bias"] = m.mlp_bias;
  io::Json layers = io::Json::array();
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) layers.push_back(has_rope(m, i) ? 1 : 0);
  json["no_rope_layers"] = layers;
  json["no_rope_layer_interval"] = family_of(m).decoder.no_rope_every;
}

}  // namespace

extern const Family kSmolLm3{
    .name = "smollm3",
    .hf_architecture = "SmolLM3ForCausalLM",
    .hf_model_type = "smollm3",
    .decoder = {.attention_bias = true, .mlp_bias = true, .windows = WindowedLayers::by_layer, .no_rope_every = 4},
    .hf_defaults = {.kv_heads = 4,
                    .positions = 32768,
                    .pad_token = 128004,
                    .tied = true,
                    .rope_theta = 2e6,
                    .window_switch = true},
    .hf_keys = kSmolLm3Keys,
    .table = decoder_table,
    .constants = rope_table,
    .forward = pre_norm_forward,
    .read_hf = read_smollm3_keys,
    .write_hf = write_smollm3_keys};

}  // namespace redline::model
