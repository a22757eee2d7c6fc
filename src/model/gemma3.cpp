// Gemma-3 (text): norms before and after both branches, all of weight 1 + w; GeGLU; an RMSNorm over each query and key
// head; scores divided by the root of query_pre_attn_scalar; the embedding times the root of hidden. All but every
// sixth layer have a window, and these have RoPE of another base.
#include "base/error.h"
#include "io/json.h"
#include "model/family.h"
#include "program/builder.h"

namespace redline::model {
namespace {

// h = h + norm(attention(norm(h)));  h = h + norm(mlp(norm(h)));  and a last norm.
ForwardValues forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                      const program::BatchValues& in) {
  using program::Part;
  const float eps = static_cast<float>(m.norm_eps);
  program::ValueId h = embed_tokens(b, m, values, in);
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
    const DecoderLayer layer(b, m, values, in, i);
    const auto norm = [&](const char* name) {
      return b.add_norm(h, program::kAbsent, layer.parameter(name), eps, name, true).y;
    };
    const auto join = [&](program::ValueId branch, const char* name) {
      h = b.norm_add(h, branch, layer.parameter(name), eps, name, true);
    };
    b.at(Part::attention, i);
    join(layer.attention(norm("attention norm")), "attention end norm");
    b.at(Part::mlp, i);
    join(layer.mlp(norm("mlp norm")), "mlp end norm");
  }
  return final_norm(b, m, values, h, program::kAbsent);
}

constexpr std::string_view kGemma3Keys[] = {"hidden_activation", "query_pre_attn_scalar", "rope_local_base_freq",
                                            "sliding_window_pattern", "_sliding_window_pattern"};
constexpr std::int64_t kQueryScalar = 256;  // where config.json is silent
constexpr const char* kGemma3Activation = "gelu_pytorch_tanh";

void read_gemma3_keys(const io::Json& json, std::string_view file, config::Model& m) {
  const auto there = [&](const char* key) { return json.contains(key) && !json[key].is_null(); };
  if (there("hidden_activation") && io::string_at(json, "hidden_activation", file) != kGemma3Activation)
    fail_user("{}: hidden_activation {} is not supported; redline's Gemma-3 knows {}", file,
              io::in_quotes(io::string_at(json, "hidden_activation", file)), kGemma3Activation);
  const std::int64_t scalar =
      there("query_pre_attn_scalar") ? io::integer_at(json, "query_pre_attn_scalar", file) : kQueryScalar;
  if (scalar < 1) fail_user("{}: query_pre_attn_scalar is {}; it must be above 0", file, scalar);
  m.query_pre_attn_scalar = scalar == m.head_dim ? 0 : scalar;
  if (m.window == 0 || !m.layer_types.empty() || !there("sliding_window_pattern")) return;
  const std::int64_t every = io::integer_at(json, "sliding_window_pattern", file);
  if (every < 1) fail_user("{}: sliding_window_pattern is {}; it must be at least 1", file, every);
  for (std::int64_t i = 0; i < m.layers; ++i)
    m.layer_types.emplace_back((i + 1) % every ? kSlidingAttention : kFullAttention);
}

void write_gemma3_keys(const config::Model& m, io::Json& json) {
  write_windows(m, json);
  json.erase("hidden_act");
  json["hidden_activation"] = kGemma3Activation;
  json["query_pre_attn_scalar"] = m.query_pre_attn_scalar > 0 ? m.query_pre_attn_scalar : m.head_dim;
  json["rope_local_base_freq"] = m.rope_local_theta > 0 ? m.rope_local_theta : m.rope_theta;
  json["attn_logit_softcapping"] = json["final_logit_softcapping"] = nullptr;
  json["use_bidirectional_attention"] = false;
}

}  // namespace

extern const Family kGemma3{.name = "gemma3",
                            .hf_architecture = "Gemma3ForCausalLM",
                            .hf_model_type = "gemma3_text",
                            .decoder = {.qk_norm = ops::NormOver::head,
                                        .mlp_norm = "pre_feedforward_layernorm.weight",
                                        .attention_end_norm = "post_attention_layernorm.weight",
                                        .mlp_end_norm = "post_feedforward_layernorm.weight",
                                        .one_plus = true,
                                        .attention_bias = true,
                                        .scaled_embedding = true,
                                        .query_scalar = true,
                                        .gate = ops::Gate::gelu_tanh,
                                        .windows = WindowedLayers::by_layer,
                                        .full_every = 6,
                                        .local_rope = true},
                            .hf_defaults = {.head_dim = 256,
                                            .kv_heads = 4,
                                            .positions = 131072,
                                            .pad_token = 0,
                                            .tied = true,
                                            .rope_theta = 1e6,
                                            .rope_local_theta = 1e4,
                                            .window = 4096,
                                            .whole_heads = true},
                            .hf_keys = kGemma3Keys,
                            .table = decoder_table,
                            .constants = rope_table,
                            .forward = forward,
                            .read_hf = read_gemma3_keys,
                            .write_hf = write_gemma3_keys};

}  // namespace redline::model
