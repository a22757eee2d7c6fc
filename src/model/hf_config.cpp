// Reads what transformers 4 and 5 write, and writes what both read. model.init_from is taken key by key, so that a
// conflict names its key.
#include "model/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/words.h"
#include "config/keys.h"
#include "data/from_config.h"
#include "io/checkpoint_folder.h"
#include "model/family.h"

namespace redline::model {
namespace {

bool has(const io::Json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && !it->is_null();
}

// The places of a config.json that speak of rope. Since transformers 5 all of it stands in rope_parameters; before,
// theta stood at the top and scaling in rope_scaling. Families whose layers have two tables have an object for each
// kind in rope_parameters, and all places speak of the layers without a window.
struct RopePlaces {
  struct Place {
    const char* name;
    const io::Json& values;
  };
  Place top, scaling, parameters;
  bool by_kind = false;

  // transformers takes rope_scaling where both are there, and all of it; by kind it adds it to the other.
  io::Json counting() const {
    if (scaling.values.empty()) return parameters.values;
    io::Json all = by_kind ? parameters.values : io::Json::object();
    all.update(scaling.values);
    return all;
  }
};

constexpr const char* kOriginalLength = "original_max_position_embeddings";

// What is said twice must be said alike: nobody knows which of two was trained with.
void refuse_rope_contradictions(const RopePlaces& in, const std::string& file) {
  using Said = std::pair<std::string, std::string>;  // where, and what
  const auto require_one = [&](std::string_view what, const std::vector<Said>& all) {
    for (const auto& [where, value] : all)
      if (value != all[0].second)
        fail_user("{}: {} is {} in {} and {} in {}; leave in only the one that the weights were trained with", file,
                  what, all[0].second, all[0].first, value, where);
  };
  for (const char* key : {"rope_theta", "factor", "low_freq_factor", "high_freq_factor", kOriginalLength, "beta_fast",
                          "beta_slow", "attention_factor", "partial_rotary_factor"}) {
    const std::string_view name = key;
    const bool also_at_top = name == "rope_theta" || name == "partial_rotary_factor" || name == kOriginalLength;
    std::vector<Said> all;
    for (const RopePlaces::Place* place : {&in.top, &in.scaling, &in.parameters})
      if ((place != &in.top || also_at_top) && has(place->values, key))
        all.emplace_back(place->name, fmt::format("{}", io::number_at(place->values, key, file)));
    if (!all.empty()) require_one(key, all);
  }
  std::vector<Said> types;
  for (const RopePlaces::Place* place : {&in.scaling, &in.parameters})
    for (const char* key : {"rope_type", "type"})
      if (has(place->values, key))
        types.emplace_back(fmt::format("{}.{}", place->name, key),
                           io::in_quotes(io::string_at(place->values, key, file)));
  if (!types.empty()) require_one("the rope type", types);
  if (!in.by_kind && !in.scaling.values.empty() && has(in.parameters.values, "rope_theta") &&
      !has(in.scaling.values, "rope_theta") && !has(in.top.values, "rope_theta"))
    fail_user(
        "{}: rope_parameters has a rope_theta, but transformers passes over it beside a rope_scaling, which has none; "
        "leave one of the two out",
        file);
}

std::string rope_type(const io::Json& rope, const std::string& file) {
  for (const char* key : {"rope_type", "type"})
    if (has(rope, key)) return io::string_at(rope, key, file);
  return "default";
}

// Keys of the objects that speak of rope; any other may change what it does.
constexpr std::string_view kRopeKeys[] = {"rope_theta",
                                          "rope_type",
                                          "type",
                                          "factor",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          kOriginalLength,
                                          "beta_fast",
                                          "beta_slow",
                                          "attention_factor",
                                          "mscale",
                                          "mscale_all_dim",
                                          "truncate",
                                          "partial_rotary_factor"};

// yarn's keys. Where the file has no attention_factor it follows from mscale and mscale_all_dim, or from the factor.
void read_yarn(const io::Json& rope, const Family& family, const std::string& file, config::Model& m) {
  const auto optional = [&](const char* key, double otherwise) {
    const double value = has(rope, key) ? io::number_at(rope, key, file) : 0;
    if (value < 0) fail_user("{}: {} of the rope parameters is {}; it must not be below 0", file, key, value);
    return value == 0 ? otherwise : value;  // 0 is none, as in transformers
  };
  m.rope_beta_fast = optional("beta_fast", 32);
  m.rope_beta_slow = optional("beta_slow", 1);
  if (!(m.rope_beta_fast > m.rope_beta_slow))
    fail_user("{}: the rope parameters must have beta_fast ({}) above beta_slow ({})", file, m.rope_beta_fast,
              m.rope_beta_slow);
  if (has(rope, "attention_factor") && io::number_at(rope, "attention_factor", file) == 0)
    fail_user("{}: attention_factor of the rope parameters is 0; leave it out, or set it above 0", file);
  m.rope_attention_factor = optional("attention_factor", 0);
  const double mscale = optional("mscale", 0), all_dim = optional("mscale_all_dim", 0);
  if (m.rope_attention_factor == 0 && mscale > 0 && all_dim > 0) {
    const auto of = [&](double scale) { return 0.1 * scale * std::log(m.rope_factor) + 1; };
    m.rope_attention_factor = of(mscale) / of(all_dim);
  }
  m.rope_truncate = !rope.contains("truncate") || io::boolean_or(rope, "truncate", false, file);  // null is false
  if (!m.rope_truncate && family.decoder.local_rope)
    fail_user(
        "{}: truncate of the rope parameters is false, which transformers passes over in a {}: there yarn's range "
        "begins and ends at whole pairs; leave the key out, if the model was trained with transformers",
        file, family.hf_architecture);
}

void read_rope(const io::Json& json, const Family& family, const std::string& file, config::Model& m) {
  static const io::Json kNone = io::Json::object();
  const auto object = [&](const io::Json& in, const char* key) -> const io::Json& {
    if (!has(in, key)) return kNone;
    if (!in[key].is_object()) fail_user("{}: {} is not an object", file, key);
    return in[key];
  };
  const bool by_kind = family.decoder.local_rope;
  const io::Json &scaling = object(json, "rope_scaling"), &parameters = object(json, "rope_parameters");
  const std::string full_kind(kFullAttention), sliding_kind(kSlidingAttention);
  const io::Json &full = by_kind ? object(parameters, full_kind.c_str()) : parameters,
                 &sliding = by_kind ? object(parameters, sliding_kind.c_str()) : kNone;
  // What transformers 4 and 5 read differently.
  if (by_kind && has(scaling, "type") && !has(scaling, "rope_type"))
    fail_user(
        "{}: rope_scaling of a {} has \"type\", which transformers 5 passes over; write \"rope_type\" if it counts",
        file, family.hf_architecture);
  const HfDefaults& defaults = family.hf_defaults;
  if (by_kind && defaults.rope_local_theta == defaults.rope_theta && has(json, "rope_theta") &&
      !has(sliding, "rope_theta") && io::number_at(json, "rope_theta", file) != defaults.rope_theta)
    fail_user(
        "{}: rope_theta of a {} is {}, which is that of all layers for transformers 4 and not of those with a window "
        "for transformers 5; write rope_parameters with {} and {}, an object with rope_theta each",
        file, family.hf_architecture, io::number_at(json, "rope_theta", file), kFullAttention, kSlidingAttention);
  if (by_kind && !parameters.empty() && full.empty() && sliding.empty())
    fail_user("{}: rope_parameters of a {} must have {} and {}, an object each", file, family.hf_architecture,
              kFullAttention, kSlidingAttention);
  for (const io::Json* values : {&scaling, &full, &sliding})
    for (const auto& [key, value] : values->items()) {
      if (value.is_object())
        fail_user("{}: rope parameters that differ between layers ({}) are not supported for {}", file,
                  io::in_quotes(key), family.hf_architecture);
      if (!value.is_null() && std::ranges::find(kRopeKeys, key) == std::end(kRopeKeys))
        fail_user("{}: the rope parameters have {}, which redline does not know", file, io::in_quotes(key));
    }
  const RopePlaces places{{"config.json itself", json},
                          {"rope_scaling", scaling},
                          {by_kind ? "rope_parameters.full_attention" : "rope_parameters", full},
                          by_kind};
  refuse_rope_contradictions(places, file);
  const io::Json rope = places.counting();
  m.rope_theta = family.hf_defaults.rope_theta;
  for (const io::Json* values : {&rope, &json})
    if (has(*values, "rope_theta")) m.rope_theta = io::number_at(*values, "rope_theta", file);
  if (!(m.rope_theta > 0)) fail_user("{}: rope_theta is {}; it must be above 0", file, m.rope_theta);

  const std::string type = rope_type(rope, file);
  const auto factor = [&](const char* key, double least) {
    const double value = io::number_at(rope, key, file);
    if (!(value >= least))
      fail_user("{}: {} of the rope parameters is {}; it must be at least {}", file, key, value, least);
    return value;
  };
  if (type == "llama3" || type == "yarn") {
    const io::Json& place = has(rope, kOriginalLength) ? rope : json;
    m.rope_original_len = has(place, kOriginalLength) || type == "llama3" ? io::integer_at(place, kOriginalLength, file)
                                                                          : m.max_positions;
    if (m.rope_original_len < 1)
      fail_user("{}: {} of the rope parameters is {}; it must be positive", file, kOriginalLength, m.rope_original_len);
  }
  if (type == "llama3" || type == "linear" || type == "yarn") {
    m.rope_scaling = type;
    if (type == "yarn" && rope.contains("factor") && rope["factor"].is_null())  // transformers' way out
      m.rope_factor = std::max(1.0, static_cast<double>(m.max_positions) / static_cast<double>(m.rope_original_len));
    else
      m.rope_factor = factor("factor", 1);
  } else if (type != "default") {
    fail_user("{}: rope type {} is not supported; redline knows default, linear, llama3 and yarn{}", file,
              io::in_quotes(type),
              type != "dynamic" ? ""
                                : ". dynamic changes nothing in texts of at most max_position_embeddings tokens: write "
                                  "default for these, or yarn to train for longer ones");
  }
  if (type == "yarn") read_yarn(rope, family, file, m);
  if (type == "llama3") {
    m.rope_low_freq_factor = factor("low_freq_factor", 1e-6);
    m.rope_high_freq_factor = factor("high_freq_factor", 1e-6);
    if (!(m.rope_high_freq_factor > m.rope_low_freq_factor))
      fail_user("{}: the rope parameters must have high_freq_factor above low_freq_factor", file);
  }
  for (const io::Json* place : {&rope, &sliding, &json})
    if (has(*place, "partial_rotary_factor") && io::number_at(*place, "partial_rotary_factor", file) != 1.0)
      fail_user("{}: partial_rotary_factor is not supported; redline turns whole heads", file);
  if (!by_kind) return;
  if (rope_type(sliding, file) != "default")
    fail_user(
        "{}: the rope type of sliding_attention is {}, which is not supported; redline stretches that of "
        "full_attention alone",
        file, io::in_quotes(rope_type(sliding, file)));
  const auto local = [&](const io::Json& in, const char* key) {
    return has(in, key) ? std::optional(io::number_at(in, key, file)) : std::nullopt;
  };
  const std::optional<double> old = local(json, "rope_local_base_freq"), theta = local(sliding, "rope_theta");
  for (const std::optional<double>& base : {old, theta})
    if (base && !(*base > 0)) fail_user("{}: the base of sliding_attention is {}; it must be above 0", file, *base);
  if (old && theta && *old != *theta)
    fail_user(
        "{}: rope_local_base_freq is {}, and rope_theta of sliding_attention is {}; leave in only the one that the "
        "weights were trained with",
        file, *old, *theta);
  m.rope_local_theta = theta ? *theta : old.value_or(family.hf_defaults.rope_local_theta);
  if (m.rope_local_theta == m.rope_theta) m.rope_local_theta = 0;
}

// Keys that change nothing of what a model computes: other programs' notes, settings of generation and of transformers
// itself, dropouts (model.dropout is ours), and what is read elsewhere. A key that is in no list and says something may
// change the model, and is refused.
constexpr std::string_view kHarmless[] = {"architectures",
                                          "attention_dropout",
                                          "attn_implementation",
                                          "auto_map",
                                          "bos_token_id",
                                          "cache_implementation",
                                          "chunk_size_feed_forward",
                                          "decoder_start_token_id",
                                          "dtype",
                                          "embd_pdrop",
                                          "embedding_dropout",
                                          "eos_token_id",
                                          "finetuning_task",
                                          "gradient_checkpointing",
                                          "hidden_dropout",
                                          "id2label",
                                          "initializer_range",
                                          "is_decoder",
                                          "is_llama_config",
                                          "is_encoder_decoder",
                                          "label2id",
                                          "language",
                                          "license",
                                          "max_length",
                                          "min_length",
                                          "model_max_length",
                                          "model_type",
                                          "name_or_path",
                                          "pad_token",
                                          "prefix",
                                          "problem_type",
                                          "resid_pdrop",
                                          "return_dict",
                                          "sep_token_id",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "torch_dtype",
                                          "torchscript",
                                          "transformers_version",
                                          "transformers.js_config",
                                          "unsloth_fixed",
                                          "unsloth_version",
                                          "use_bfloat16",
                                          "use_cache",
                                          "do_sample",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "num_beams",
                                          "repetition_penalty",
                                          "pruned_heads",
                                          "tie_encoder_decoder",
                                          "output_attentions",
                                          "output_hidden_states"};
// Keys that are read for every family.
constexpr std::string_view kRead[] = {"attention_bias",      "head_dim",
                                      "hidden_act",          "hidden_size",
                                      "intermediate_size",   "is_causal",
                                      "layer_types",         "max_position_embeddings",
                                      "num_attention_heads", "num_hidden_layers",
                                      "num_key_value_heads", "pad_token_id",
                                      "rms_norm_eps",        "rope_parameters",
                                      "rope_scaling",        "rope_theta",
                                      "sliding_window",      "tie_word_embeddings",
                                      "vocab_size",          "partial_rotary_factor",
                                      kOriginalLength};

// Biases, and the families that may have them. The last key is of people who write down what Qwen2 has by itself.
struct BiasKey {
  std::string_view key;
  bool DecoderDescription::*may;
};
constexpr BiasKey kBiases[] = {{"attention_bias", &DecoderDescription::attention_bias},
                               {"mlp_bias", &DecoderDescription::mlp_bias},
                               {"qkv_bias", &DecoderDescription::qkv_bias}};

// Keys of other models that people bring, and what a model with them computes.
struct UnknownPart {
  std::string_view key, does;
};
constexpr UnknownPart kUnknownParts[] = {
    {"attn_logit_softcapping", "bends attention's scores by a tanh, as Gemma-2 does"},
    {"final_logit_softcapping", "bends the logits by a tanh, as Gemma-2 does"},
    {"clip_qkv", "cuts queries, keys and values off at this size, as OLMo-1 does"},
    {"embedding_multiplier", "multiplies the embedding, as Granite does"},
    {"residual_multiplier", "multiplies every branch before it is added, as Granite does"},
    {"attention_multiplier", "is the factor of attention's scores, as in Granite"},
    {"logits_scaling", "divides the logits, as Granite does"},
    {"logit_scale", "multiplies the logits, as Cohere's models do"},
    {"use_qk_norm", "puts norms over queries and keys, for which these weights need another family"},
    {"qk_norm", "puts norms over queries and keys, for which these weights need another family"},
    {"qk_layernorm", "puts norms over queries and keys, for which these weights need another family"},
    {"use_bidirectional_attention", "lets tokens see later ones"},
    {"rope_interleaved", "turns pairs of neighbours in a head, where redline turns its two halves"},
    {"attention_chunk_size", "cuts attention into chunks, as Llama-4 does"},
    {"num_experts", "makes experts of the MLPs, for which redline has olmoe, qwen3_moe and mixtral"},
    {"num_local_experts", "makes experts of the MLPs, for which redline has olmoe, qwen3_moe and mixtral"},
    {"n_routed_experts", "makes experts of the MLPs as DeepSeek does"},
    {"shared_expert_intermediate_size", "adds an expert that every token takes"},
    {"n_shared_experts", "adds experts that every token takes"},
    {"scoring_func", "gives the routers another function than a softmax"},
    {"n_group", "has the routers choose among groups of experts first"},
    {"routed_scaling_factor", "multiplies what the experts give"},
};

// Refuses settings that would make another model of the same weights.
void refuse_unsupported(const io::Json& json, const Family& family, const std::string& file) {
  const DecoderDescription& d = family.decoder;
  for (const auto& [key, may] : kBiases) {
    if (!io::boolean_or(json, key, false, file) || d.*may) continue;
    std::vector<std::string_view> having;
    for (const Family* f : families())
      if (f->decoder.*may) having.push_back(f->name);
    fail_user(
        "{}: {} is true, but transformers' {} knows no such key and has no such biases; set it to false, or, where the "
        "weights have them, name their family in \"architectures\": such biases are of {}",
        file, key, family.hf_architecture, fmt::join(having, ", "));
  }
  const bool silu = family.decoder.gate == ops::Gate::silu;
  if (silu && has(json, "hidden_act") && io::string_at(json, "hidden_act", file) != "silu")
    fail_user("{}: hidden_act {} is not supported; redline knows silu for {}", file,
              io::in_quotes(io::string_at(json, "hidden_act", file)), family.hf_architecture);
  // The one key of these whose `false` says something; transformers 5 reads it.
  if (!io::boolean_or(json, "is_causal", true, file))
    fail_user("{}: is_causal is false, which is not supported; redline's tokens see earlier ones alone", file);
  if (has(json, "quantization_config"))
    fail_user("{}: quantization_config: quantized weights are not supported; use the model in bf16, f16 or f32", file);
  const auto among = [](std::span<const std::string_view> keys, std::string_view key) {
    return std::ranges::find(keys, key) != keys.end();
  };
  for (const auto& [key, value] : json.items()) {
    const bool off = value.is_null() || value == false;
    if (off || key.starts_with('_') || among(kHarmless, key) || among(kRead, key) || among(family.hf_keys, key) ||
        std::ranges::find(kBiases, key, &BiasKey::key) != std::end(kBiases))
      continue;
    const std::string said = value.is_structured() ? value.type_name() : value.dump();
    if (const auto* part = std::ranges::find(kUnknownParts, key, &UnknownPart::key); part != std::end(kUnknownParts))
      fail_user(
          "{}: {} is {}: it {}; redline's {} has no such part, so weights that were trained with it cannot be read, "
          "and from a config.json of others the key is to be removed",
          file, key, said, part->does, family.hf_architecture);
    std::vector<std::string_view> having;
    for (const Family* f : families())
      if (among(f->hf_keys, key)) having.push_back(f->name);
    if (!having.empty())
      fail_user(
          "{}: {} is {}: it belongs to {}, and a {} has no such part; remove the key, unless the weights are of "
          "another family",
          file, io::in_quotes(key), said, fmt::join(having, ", "), family.hf_architecture);
    fail_user(
        "{}: redline does not know {}, which is {}: with it {} may compute something else; remove the key, if "
        "transformers gives the same logits without it",
        file, io::in_quotes(key), said, family.hf_architecture);
  }
}

// sliding_window and layer_types. Which layers have the window where layer_types is silent, families say (read_hf).
void read_windows(const io::Json& json, const Family& family, const std::string& file, config::Model& m) {
  const HfDefaults& defaults = family.hf_defaults;
  const WindowedLayers windows = family.decoder.windows;
  m.window = json.contains("sliding_window") ? 0 : defaults.window;
  if (has(json, "sliding_window")) m.window = io::integer_at(json, "sliding_window", file);
  if (has(json, "sliding_window") && m.window < 1)
    fail_user("{}: sliding_window is {}; it must be positive, or null", file, m.window);
  if (defaults.window_switch && !io::boolean_or(json, "use_sliding_window", false, file)) m.window = 0;
  if (windows == WindowedLayers::none && m.window > 0)
    fail_user("{}: sliding_window is {}, which is not supported for {}; redline attends to the whole document there",
              file, m.window, family.hf_architecture);
  if (!has(json, "layer_types")) return;
  if (!json["layer_types"].is_array()) fail_user("{}: layer_types is not a list", file);
  if (json["layer_types"].size() != static_cast<std::size_t>(m.layers))
    fail_user("{}: layer_types names {}, and num_hidden_layers is {}; mend the one that is wrong", file,
              counted(json["layer_types"].size(), "layer"), m.layers);
  for (const io::Json& type : json["layer_types"]) {
    const std::string name = type.is_string() ? type.get<std::string>() : type.type_name();
    const bool sliding = name == kSlidingAttention;
    if ((!sliding && name != kFullAttention) || (sliding && windows == WindowedLayers::none))
      fail_user("{}: layer_types holds {}, which is not supported for {}", file, io::in_quotes(name),
                family.hf_architecture);
    if (sliding && m.window == 0)
      fail_user(
          "{}: layer_types holds \"sliding_attention\", but {}; mend the one that is wrong", file,
          defaults.window_switch ? "use_sliding_window is false or sliding_window null" : "sliding_window is null");
    if (!sliding && m.window > 0 && windows == WindowedLayers::every_layer)
      fail_user("{}: layer_types holds \"full_attention\", which is not supported for {} beside a sliding_window", file,
                family.hf_architecture);
    m.layer_types.push_back(name);
  }
}

const Family& kind_of(const io::Json& json, const std::string& file) {
  std::string architecture;
  if (const auto it = json.find("architectures");
      it != json.end() && it->is_array() && !it->empty() && (*it)[0].is_string())
    architecture = (*it)[0].get<std::string>();
  const std::string type = has(json, "model_type") ? io::string_at(json, "model_type", file) : "";
  const auto found = std::ranges::find_if(families(), [&](const Family* f) {
    return architecture.empty() ? type == f->hf_model_type : architecture == f->hf_architecture;
  });
  if (found == families().end()) {
    std::vector<std::string_view> names;
    for (const Family* f : families()) names.push_back(f->hf_architecture);
    fail_user("{}: architecture {} is not supported; redline knows {}", file,
              io::in_quotes(architecture.empty() ? type : architecture), fmt::join(names, ", "));
  }
  if (!type.empty() && type != (*found)->hf_model_type)
    fail_user("{}: model_type is {}, but architectures names {}, whose type is {}; mend the one that is wrong", file,
              io::in_quotes(type), architecture, io::in_quotes((*found)->hf_model_type));
  return **found;
}

}  // namespace

config::Model read_hf_config(FileSystem& files, const Path& path) {
  const io::Json json = io::read_json(files, path);
  const std::string file = path.string();
  if (!json.is_object()) fail_user("{}: not a JSON object", file);

  const Family& family = kind_of(json, file);
  const HfDefaults& defaults = family.hf_defaults;

  config::Model m;
  m.family = family.name;
  m.layers = io::integer_at(json, "num_hidden_layers", file);
  m.hidden = io::integer_at(json, "hidden_size", file);
  m.heads = io::integer_at(json, "num_attention_heads", file);
  m.kv_heads = has(json, "num_key_value_heads") ? io::integer_at(json, "num_key_value_heads", file) : m.heads;
  if (!json.contains("num_key_value_heads") && defaults.kv_heads > 0) m.kv_heads = defaults.kv_heads;  // null: as heads
  m.ffn = io::integer_at(json, "intermediate_size", file);
  m.vocab = io::integer_at(json, "vocab_size", file);
  for (const auto& [key, value] : {std::pair{"num_hidden_layers", m.layers},
                                   {"hidden_size", m.hidden},
                                   {"num_attention_heads", m.heads},
                                   {"num_key_value_heads", m.kv_heads},
                                   {"intermediate_size", m.ffn},
                                   {"vocab_size", m.vocab}})
    if (value < 1 || value > (std::int64_t{1} << 30))
      fail_user("{}: {} is {}; it must be from 1 to 2^30", file, key, value);
  if (m.heads % m.kv_heads)
    fail_user("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", file, m.heads, m.kv_heads);

  m.head_dim = has(json, "head_dim") ? io::integer_at(json, "head_dim", file) : defaults.head_dim;
  if (!has(json, "head_dim") && m.head_dim == 0) {
    if (m.hidden % m.heads)
      fail_user("{}: hidden_size {} is not a multiple of num_attention_heads {}", file, m.hidden, m.heads);
    m.head_dim = m.hidden / m.heads;
  }
  if (has(json, "pad_token_id"))
    m.pad_token = io::integer_at(json, "pad_token_id", file);
  else if (!json.contains("pad_token_id"))  // null is none
    m.pad_token = defaults.pad_token;
  if (m.pad_token < -1 || m.pad_token >= m.vocab)
    fail_user("{}: pad_token_id is {}, and there are {} tokens", file, m.pad_token, m.vocab);
  m.tied = io::boolean_or(json, "tie_word_embeddings", defaults.tied, file);
  m.attention_bias = io::boolean_or(json, "attention_bias", false, file);
  m.mlp_bias = io::boolean_or(json, "mlp_bias", false, file);
  if (json.contains("rms_norm_eps") && json["rms_norm_eps"].is_null())
    fail_user("{}: rms_norm_eps is null; write the number that the model was trained with", file);
  m.norm_eps = has(json, "rms_norm_eps") ? io::number_at(json, "rms_norm_eps", file) : defaults.norm_eps;
  if (has(json, "initializer_range")) m.init_std = io::number_at(json, "initializer_range", file);
  m.max_positions =
      has(json, "max_position_embeddings") ? io::integer_at(json, "max_position_embeddings", file) : defaults.positions;
  if (m.max_positions < 1 || m.max_positions > (std::int64_t{1} << 30))
    fail_user("{}: max_position_embeddings is {}; it must be from 1 to 2^30", file, m.max_positions);
  for (const auto& [key, value] : {std::pair{"rms_norm_eps", m.norm_eps}, {"initializer_range", m.init_std}})
    if (!(value > 0)) fail_user("{}: {} is {}; it must be above 0", file, key, value);
  refuse_unsupported(json, family, file);
  read_windows(json, family, file, m);
  read_rope(json, family, file, m);
  if (m.head_dim < 2 || m.head_dim % 2 || m.head_dim > config::kMaxHeadDim)
    fail_user("{}: head_dim is {}; it must be even, from 2 to {}", file, m.head_dim, config::kMaxHeadDim);
  if (family.read_hf) family.read_hf(json, file, m);
  bool window = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) window = window || has_window(m, i);
  if (!window) m.window = 0;
  if (m.window == 0) m.layer_types.clear(), m.rope_local_theta = 0;
  settle_layers(m);
  return m;
}

std::string_view hf_name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    default: fail_machine("weights are not written as {}", name_of(dtype));
  }
}

// Where no layer has the window, transformers still wants a number for families without a switch.
void write_windows(const config::Model& m, io::Json& json) {
  const HfDefaults& defaults = family_of(m).hf_defaults;
  io::Json types = io::Json::array();
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i)
    types.push_back(has_window(m, i) ? kSlidingAttention : kFullAttention);
  json["layer_types"] = types;
  json["sliding_window"] = m.window > 0             ? io::Json(m.window)
                           : defaults.window_switch ? io::Json(nullptr)
                                                    : io::Json(defaults.window);
}

io::Json hf_config(const config::Model& m, const HfDetails& details) {
  const Family& family = family_of(m);
  io::Json rope = io::Json::object();
  const bool yarn = m.rope_scaling == "yarn", llama3 = m.rope_scaling == "llama3";
  if (yarn && m.rope_attention_factor > 0) rope["attention_factor"] = m.rope_attention_factor;
  if (yarn) rope["beta_fast"] = m.rope_beta_fast, rope["beta_slow"] = m.rope_beta_slow;
  if (m.rope_scaling != "none") rope["factor"] = m.rope_factor;
  if (llama3) rope["high_freq_factor"] = m.rope_high_freq_factor, rope["low_freq_factor"] = m.rope_low_freq_factor;
  if (llama3 || yarn) rope[kOriginalLength] = m.rope_original_len;
  rope["rope_theta"] = m.rope_theta;
  rope["rope_type"] = m.rope_scaling == "none" ? "default" : m.rope_scaling;
  if (yarn && !m.rope_truncate) rope["truncate"] = false;
  io::Json json = {{"architectures", {family.hf_architecture}},
                   {"attention_bias", m.attention_bias},
                   {"attention_dropout", 0.0},
                   {"bos_token_id", details.bos},
                   {"dtype", hf_name_of(details.dtype)},
                   {"eos_token_id", details.eos},
                   {"head_dim", m.head_dim},
                   {"hidden_act", "silu"},
                   {"hidden_size", m.hidden},
                   {"initializer_range", m.init_std},
                   {"intermediate_size", m.ffn},
                   {"max_position_embeddings", details.max_positions},
                   {"model_type", family.hf_model_type},
                   {"num_attention_heads", m.heads},
                   {"num_hidden_layers", m.layers},
                   {"num_key_value_heads", m.kv_heads},
                   {"pad_token_id", m.pad_token < 0 ? io::Json(nullptr) : io::Json(m.pad_token)},
                   {"rms_norm_eps", m.norm_eps},
                   {"rope_parameters", rope},
                   {"rope_theta", m.rope_theta},
                   {"tie_word_embeddings", m.tied},
                   {"torch_dtype", hf_name_of(details.dtype)},
                   {"vocab_size", m.vocab}};
  if (m.rope_scaling != "none") json["rope_scaling"] = rope;  // what transformers 4 reads
  if (family.decoder.local_rope)
    json["rope_parameters"] = {
        {kFullAttention, rope},
        {kSlidingAttention,
         {{"rope_theta", m.rope_local_theta > 0 ? m.rope_local_theta : m.rope_theta}, {"rope_type", "default"}}}};
  if (family.write_hf) family.write_hf(m, json);
  return json;
}

io::Json hf_generation(const config::Model& m, const HfDetails& details) {
  io::Json json = io::Json::object();
  if (!details.bos.is_null()) json["bos_token_id"] = details.bos;
  if (!details.eos.is_null()) json["eos_token_id"] = details.eos;
  if (m.pad_token >= 0)
    json["pad_token_id"] = m.pad_token;
  else if (details.eos.is_number_integer())
    json["pad_token_id"] = details.eos;
  return json;
}

namespace {

enum class Says { folder, user, whoever_wrote };

Says who_says(std::string_view key) {
  if (!key.starts_with("model.") || key == "model.init_from" || key == "model.dropout" || key == "model.init")
    return Says::user;
  if (key == "model.router_z_loss" || key == "model.router_balance") return Says::user;
  if (key == "model.max_positions" || key == "model.init_std" || key == "model.router_aux") return Says::whoever_wrote;
  return Says::folder;
}

// 0 heads, an unset norm and an empty list mean "as follows from the rest".
bool follows(std::string_view key, const config::Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return true;
  if (key == "model.layer_types") return std::get<std::vector<std::string>>(value).empty();
  if (key == "model.rope_layers") return std::get<std::vector<std::int64_t>>(value).empty();
  return (key == "model.kv_heads" || key == "model.head_dim") && value == config::Value(std::int64_t{0});
}

}  // namespace

void take_model(config::Config& config, const config::Model& from, std::string_view where) {
  config::Config source;
  source.model = from;
  std::ranges::sort(config.model.dense_layers);  // whichever way they were written
  for (const config::Key& key : config::keys()) {
    const Says says = who_says(key.name);
    if (says == Says::user) continue;
    const config::Value given = config::read(key, config), wanted = config::read(key, source);
    const bool written = config.origins.written(key.name) && !follows(key.name, given);
    if (given == wanted || (written && says == Says::whoever_wrote)) continue;
    if (written)
      fail_user("{}{} is {}, but {} says {}; leave the key out: model.init_from decides it",
                config.origins.prefix({key.name}), key.name, config::literal(given), where, config::literal(wanted));
    config::assign(key, wanted, where, config);
  }
}

config::Complete complete_model(FileSystem& files) {
  return [&files](config::Config& config) {
    Path weights;
    if (!config.model.init_from.empty()) {
      const auto place = config.origins.prefix({"model.init_from"});
      try {
        weights = io::find_weights_folder(files, config.model.init_from);
        const Path file = weights / "config.json";
        take_model(config, read_hf_config(files, file), file.string());
      } catch (const UserError& e) {
        const std::string_view what = e.what();
        // An error that names a key says enough.
        if (what.find("model.init_from") != what.npos) throw;
        fail_user("{}model.init_from: {}", place, what);
      }
    }
    if (weights.empty())
      data::settle_vocabulary(config);
    else
      data::settle_tokenizer(config, files, weights);
    settle_family(config);
  };
}

}  // namespace redline::model
