// Families with experts in place of one MLP: OLMoE (LLaMA's block with an RMSNorm over all queries and one over all
// keys), Qwen3-MoE (Qwen3's block, with dense layers among the others), and Mixtral (Mistral's block).
#include <algorithm>

#include "io/json.h"
#include "model/family.h"

namespace redline::model {
namespace {

bool given(const io::Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && !it->is_null();
}

// Both spellings of the number of experts: files of transformers 4 have num_experts, or num_local_experts in Mixtral's,
// and transformers 5 reads and writes either.
constexpr const char *kExperts = "num_experts", *kLocalExperts = "num_local_experts";

// What a config.json means where it is silent.
struct ExpertDefaults {
  std::int64_t experts, per_token;
  double aux;
};

void read_experts(const io::Json& json, std::string_view file, const ExpertDefaults& defaults, config::Model& m) {
  const auto integer = [&](const char* key, std::int64_t otherwise) {
    const std::int64_t value = given(json, key) ? io::integer_at(json, key, file) : otherwise;
    if (value < 1) fail_user("{}: {} is {}; it must be positive", file, key, value);
    return value;
  };
  if (given(json, kExperts) && given(json, kLocalExperts) &&
      io::integer_at(json, kExperts, file) != io::integer_at(json, kLocalExperts, file))
    fail_user("{}: {} is {}, and {} is {}; leave in only the one that the weights have", file, kExperts,
              io::integer_at(json, kExperts, file), kLocalExperts, io::integer_at(json, kLocalExperts, file));
  m.experts = integer(given(json, kExperts) ? kExperts : kLocalExperts, defaults.experts);
  m.experts_per_token = integer("num_experts_per_tok", defaults.per_token);
  if (m.experts > config::kMostExperts || m.experts_per_token > m.experts)
    fail_user("{}: num_experts_per_tok is {} of {} experts; it must not be above that, nor that above {}", file,
              m.experts_per_token, m.experts, config::kMostExperts);
  m.router_aux = given(json, "router_aux_loss_coef") ? io::number_at(json, "router_aux_loss_coef", file) : defaults.aux;
  if (!(m.router_aux >= 0)) fail_user("{}: router_aux_loss_coef is {}; it must not be below 0", file, m.router_aux);
}

void write_experts(const config::Model& m, const char* spelling, io::Json& json) {
  json[spelling] = m.experts;
  json["num_experts_per_tok"] = m.experts_per_token;
  json["router_aux_loss_coef"] = m.router_aux;
  json["output_router_logits"] = false;
}

void read_olmoe(const io::Json& json, std::string_view file, config::Model& m) {
  read_experts(json, file, {64, 8, 0.01}, m);
  m.norm_topk = io::boolean_or(json, "norm_topk_prob", false, file);
}

void write_olmoe(const config::Model& m, io::Json& json) {
  write_experts(m, kExperts, json);
  json["norm_topk_prob"] = m.norm_topk.value_or(false);
  json["clip_qkv"] = nullptr;
}

// Layer i has experts where it is not named and (i + 1) is a multiple of the step.
void read_qwen3_moe(const io::Json& json, std::string_view file, config::Model& m) {
  read_experts(json, file, {128, 8, 0.001}, m);
  m.norm_topk = io::boolean_or(json, "norm_topk_prob", false, file);
  m.expert_ffn = given(json, "moe_intermediate_size") ? io::integer_at(json, "moe_intermediate_size", file) : 768;
  if (m.expert_ffn < 1 || m.expert_ffn > (std::int64_t{1} << 30))
    fail_user("{}: moe_intermediate_size is {}; it must be from 1 to 2^30", file, m.expert_ffn);
  const std::int64_t windows_from =
      given(json, "max_window_layers") ? io::integer_at(json, "max_window_layers", file) : std::int64_t{0};
  if (m.window > 0 && windows_from > 0)
    fail_user(
        "{}: max_window_layers is {}: transformers 4 gives the layers before it no window, and transformers 5 "
        "gives all layers one; remove the key where they all have it",
        file, windows_from);
  const std::int64_t step =
      given(json, "decoder_sparse_step") ? io::integer_at(json, "decoder_sparse_step", file) : std::int64_t{1};
  if (step < 1) fail_user("{}: decoder_sparse_step is {}; it must be positive", file, step);
  std::vector<std::int64_t> dense;
  if (given(json, "mlp_only_layers")) {
    if (!json["mlp_only_layers"].is_array()) fail_user("{}: mlp_only_layers is not a list", file);
    for (const io::Json& layer : json["mlp_only_layers"]) {
      if (!layer.is_number_integer()) fail_user("{}: mlp_only_layers holds {}, which is no layer", file, layer.dump());
      dense.push_back(layer.get<std::int64_t>());
    }
  }
  for (std::int64_t i = 0; i < m.layers; ++i)
    if ((i + 1) % step != 0 || std::ranges::find(dense, i) != dense.end()) m.dense_layers.push_back(i);
  if (std::ssize(m.dense_layers) == m.layers)
    fail_user("{}: mlp_only_layers and decoder_sparse_step leave no layer with experts; such a model is a qwen3", file);
}

void write_qwen3_moe(const config::Model& m, io::Json& json) {
  write_experts(m, kExperts, json);
  json["norm_topk_prob"] = m.norm_topk.value_or(true);
  json["moe_intermediate_size"] = m.expert_ffn;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = m.dense_layers;
  json["use_sliding_window"] = m.window > 0;
  json["sliding_window"] = m.window > 0 ? io::Json(m.window) : io::Json(nullptr);
}

void read_mixtral(const io::Json& json, std::string_view file, config::Model& m) {
  read_experts(json, file, {8, 2, 0.001}, m);
  if (given(json, "router_jitter_noise") && io::number_at(json, "router_jitter_noise", file) != 0)
    fail_user("{}: router_jitter_noise is {}, which is not supported; redline's routers have no noise", file,
              io::number_at(json, "router_jitter_noise", file));
}

void write_mixtral(const config::Model& m, io::Json& json) {
  write_experts(m, kLocalExperts, json);
  json["router_jitter_noise"] = 0.0;
  json["sliding_window"] = m.window > 0 ? io::Json(m.window) : io::Json(nullptr);
  json.erase("attention_bias");  // transformers' Mixtral has no such key
}

constexpr std::string_view kOlmoeKeys[] = {kExperts,         kLocalExperts,          "num_experts_per_tok",
                                           "norm_topk_prob", "router_aux_loss_coef", "output_router_logits"};
constexpr std::string_view kQwen3MoeKeys[] = {kExperts,
                                              kLocalExperts,
                                              "num_experts_per_tok",
                                              "norm_topk_prob",
                                              "router_aux_loss_coef",
                                              "output_router_logits",
                                              "moe_intermediate_size",
                                              "decoder_sparse_step",
                                              "mlp_only_layers",
                                              "use_sliding_window",
                                              "max_window_layers"};
constexpr std::string_view kMixtralKeys[] = {kExperts,
                                             kLocalExperts,
                                             "num_experts_per_tok",
                                             "router_aux_loss_coef",
                                             "output_router_logits",
                                             "router_jitter_noise"};

}  // namespace

extern const Family kOlmoe{
    .name = "olmoe",
    .hf_architecture = "OlmoeForCausalLM",
    .hf_model_type = "olmoe",
    .decoder = {.qk_norm = ops::NormOver::projection, .attention_bias = true, .experts = ExpertNames{}},
    .hf_defaults = {.norm_eps = 1e-5, .positions = 4096, .pad_token = 1, .filled_heads = true},
    .hf_keys = kOlmoeKeys,
    .table = decoder_table,
    .constants = rope_table,
    .forward = pre_norm_forward,
    .read_hf = read_olmoe,
    .write_hf = write_olmoe};

extern const Family kQwen3Moe{.name = "qwen3_moe",
                              .hf_architecture = "Qwen3MoeForCausalLM",
                              .hf_model_type = "qwen3_moe",
                              .decoder = {.qk_norm = ops::NormOver::head,
                                          .attention_bias = true,
                                          .windows = WindowedLayers::every_layer,
                                          .experts = ExpertNames{.norm_topk = true, .dense_layers = true}},
                              .hf_defaults = {.kv_heads = 4, .positions = 32768, .window = 4096, .window_switch = true},
                              .hf_keys = kQwen3MoeKeys,
                              .table = decoder_table,
                              .constants = rope_table,
                              .forward = pre_norm_forward,
                              .read_hf = read_qwen3_moe,
                              .write_hf = write_qwen3_moe};

extern const Family kMixtral{.name = "mixtral",
                             .hf_architecture = "MixtralForCausalLM",
                             .hf_model_type = "mixtral",
                             .decoder = {.windows = WindowedLayers::every_layer,
                                         .experts = ExpertNames{.block = "block_sparse_moe",
                                                                .gate = "w1",
                                                                .up = "w3",
                                                                .down = "w2",
                                                                .norm_topk = true,
                                                                .always_norm_topk = true}},
                             .hf_defaults = {.kv_heads = 8, .norm_eps = 1e-5, .positions = 131072, .rope_theta = 1e6},
                             .hf_keys = kMixtralKeys,
                             .table = decoder_table,
                             .constants = rope_table,
                             .forward = pre_norm_forward,
                             .read_hf = read_mixtral,
                             .write_hf = write_mixtral};

}  // namespace redline::model
