// Reads what transformers 4 and 5 write, and writes what both read.
#include "model/hf_config.h"

#include "model/family.h"

namespace redline::model {
namespace {

void read_rope(const io::Json& json, std::string_view file, config::Model& m) {
  // Since transformers 5 all of it stands in rope_parameters; before, theta stood apart and scaling in rope_scaling.
  static const io::Json kNone = io::Json::object();
  const auto object = [&](const char* key) -> const io::Json& {
    const auto it = json.find(key);
    return it != json.end() && it->is_object() ? *it : kNone;
  };
  const io::Json& rope = object("rope_parameters").empty() ? object("rope_scaling") : object("rope_parameters");
  if (rope.contains("rope_theta"))
    m.rope_theta = io::number_at(rope, "rope_theta", file);
  else if (json.contains("rope_theta"))
    m.rope_theta = io::number_at(json, "rope_theta", file);

  std::string type = "default";
  for (const char* key : {"rope_type", "type"})
    if (rope.contains(key)) {
      type = io::string_at(rope, key, file);
      break;
    }
  if (type == "llama3") {
    m.rope_scaling = "llama3";
    m.rope_factor = io::number_at(rope, "factor", file);
    m.rope_low_freq_factor = io::number_at(rope, "low_freq_factor", file);
    m.rope_high_freq_factor = io::number_at(rope, "high_freq_factor", file);
    m.rope_original_len = io::integer_at(rope, "original_max_position_embeddings", file);
  } else if (type != "default") {
    fail_user("{}: rope type \"{}\" is not supported; redline knows default and llama3", file, type);
  }
  if (rope.contains("partial_rotary_factor") && io::number_at(rope, "partial_rotary_factor", file) != 1.0)
    fail_user("{}: partial_rotary_factor is not supported", file);
}

}  // namespace

config::Model read_hf_config(FileSystem& files, const Path& path) {
  const io::Json json = io::read_json(files, path);
  const std::string file = path.string();
  if (!json.is_object()) fail_user("{}: not a JSON object", file);

  const Family* family = nullptr;
  std::string architecture;
  if (const auto it = json.find("architectures");
      it != json.end() && it->is_array() && !it->empty() && (*it)[0].is_string())
    architecture = (*it)[0].get<std::string>();
  const std::string type = json.contains("model_type") ? io::string_at(json, "model_type", file) : "";
  for (const Family* f : families())
    if (architecture.empty() ? type == f->hf_model_type : architecture == f->hf_architecture) family = f;
  if (!family)
    fail_user("{}: architecture \"{}\" is not supported; redline knows LlamaForCausalLM and Qwen3ForCausalLM", file,
              architecture.empty() ? type : architecture);

  config::Model m;
  m.family = family->name;
  m.layers = io::integer_at(json, "num_hidden_layers", file);
  m.hidden = io::integer_at(json, "hidden_size", file);
  m.heads = io::integer_at(json, "num_attention_heads", file);
  m.kv_heads = json.contains("num_key_value_heads") && !json["num_key_value_heads"].is_null()
                   ? io::integer_at(json, "num_key_value_heads", file)
                   : m.heads;
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

  if (json.contains("head_dim") && !json["head_dim"].is_null()) m.head_dim = io::integer_at(json, "head_dim", file);
  m.tied = io::boolean_or(json, "tie_word_embeddings", false, file);
  m.norm_eps = json.contains("rms_norm_eps") ? io::number_at(json, "rms_norm_eps", file) : 1e-6;
  if (json.contains("initializer_range")) m.init_std = io::number_at(json, "initializer_range", file);
  if (io::boolean_or(json, "attention_bias", false, file))
    fail_user("{}: attention_bias is not supported; redline's linears have no bias", file);
  if (json.contains("hidden_act") && io::string_at(json, "hidden_act", file) != "silu")
    fail_user("{}: hidden_act \"{}\" is not supported; redline knows silu", file,
              io::string_at(json, "hidden_act", file));
  read_rope(json, file, m);
  family->read_hf(json, file, m);
  if (m.head_dim < 2 || m.head_dim % 2 || m.head_dim > config::kMaxHeadDim)
    fail_user("{}: head_dim is {}; it must be even, from 2 to {}", file, m.head_dim, config::kMaxHeadDim);
  return m;
}

io::Json hf_config(const config::Model& m, std::int64_t max_positions) {
  const Family& family = family_of(m);
  io::Json rope = {{"rope_theta", m.rope_theta}, {"rope_type", "default"}};
  if (m.rope_scaling == "llama3")
    rope = {{"factor", m.rope_factor},
            {"high_freq_factor", m.rope_high_freq_factor},
            {"low_freq_factor", m.rope_low_freq_factor},
            {"original_max_position_embeddings", m.rope_original_len},
            {"rope_theta", m.rope_theta},
            {"rope_type", "llama3"}};
  io::Json json = {{"architectures", {family.hf_architecture}},
                   {"attention_bias", false},
                   {"attention_dropout", 0.0},
                   {"dtype", "float32"},
                   {"head_dim", m.head_dim},
                   {"hidden_act", "silu"},
                   {"hidden_size", m.hidden},
                   {"initializer_range", m.init_std},
                   {"intermediate_size", m.ffn},
                   {"max_position_embeddings", max_positions},
                   {"model_type", family.hf_model_type},
                   {"num_attention_heads", m.heads},
                   {"num_hidden_layers", m.layers},
                   {"num_key_value_heads", m.kv_heads},
                   {"rms_norm_eps", m.norm_eps},
                   {"rope_parameters", rope},
                   {"rope_theta", m.rope_theta},
                   {"tie_word_embeddings", m.tied},
                   {"torch_dtype", "float32"},
                   {"vocab_size", m.vocab}};
  if (m.rope_scaling != "none") json["rope_scaling"] = rope;  // what transformers 4 reads
  family.write_hf(m, json);
  return json;
}

}  // namespace redline::model
