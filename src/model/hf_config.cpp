// Reads what transformers 4 and 5 write, and writes what both read. model.init_from is taken key by key, so that a
// conflict names its key.
#include "model/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
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
// theta stood at the top and scaling in rope_scaling.
struct RopePlaces {
  struct Place {
    const char* name;
    const io::Json& values;
  };
  Place top, scaling, parameters;

  // transformers takes rope_scaling where both are there, and all of it.
  const io::Json& counting() const { return scaling.values.empty() ? parameters.values : scaling.values; }
};

// What is said twice must be said alike: nobody knows which of two was trained with.
void refuse_rope_contradictions(const RopePlaces& in, const std::string& file) {
  using Said = std::pair<std::string, std::string>;  // where, and what
  const auto require_one = [&](std::string_view what, const std::vector<Said>& all) {
    for (const auto& [where, value] : all)
      if (value != all[0].second)
        fail_user("{}: {} is {} in {} and {} in {}; leave in only the one that the weights were trained with", file,
                  what, all[0].second, all[0].first, value, where);
  };
  for (const char* key : {"rope_theta", "factor", "low_freq_factor", "high_freq_factor",
                          "original_max_position_embeddings", "partial_rotary_factor"}) {
    const std::string_view name = key;
    const bool also_at_top = name == "rope_theta" || name == "partial_rotary_factor";
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
  if (!in.scaling.values.empty() && has(in.parameters.values, "rope_theta") && !has(in.scaling.values, "rope_theta") &&
      !has(in.top.values, "rope_theta"))
    fail_user(
        "{}: rope_parameters has a rope_theta, but transformers passes over it beside a rope_scaling, which has none; "
        "leave one of the two out",
        file);
}

void read_rope(const io::Json& json, const std::string& file, config::Model& m) {
  static const io::Json kNone = io::Json::object();
  const auto object = [&](const char* key) -> const io::Json& {
    if (!has(json, key)) return kNone;
    if (!json[key].is_object()) fail_user("{}: {} is not an object", file, key);
    return json[key];
  };
  const RopePlaces places{{"config.json itself", json},
                          {"rope_scaling", object("rope_scaling")},
                          {"rope_parameters", object("rope_parameters")}};
  for (const io::Json* values : {&places.scaling.values, &places.parameters.values})
    for (const auto& [key, value] : values->items())
      if (value.is_object())
        fail_user("{}: rope parameters that differ between layers ({}) are not supported", file, io::in_quotes(key));
  refuse_rope_contradictions(places, file);
  const io::Json& rope = places.counting();
  for (const io::Json* values : {&rope, &json})
    if (has(*values, "rope_theta")) m.rope_theta = io::number_at(*values, "rope_theta", file);
  if (!(m.rope_theta > 0)) fail_user("{}: rope_theta is {}; it must be above 0", file, m.rope_theta);

  std::string type = "default";
  for (const char* key : {"rope_type", "type"})
    if (has(rope, key)) {
      type = io::string_at(rope, key, file);
      break;
    }
  const auto factor = [&](const char* key, double least) {
    const double value = io::number_at(rope, key, file);
    if (!(value >= least))
      fail_user("{}: {} of the rope parameters is {}; it must be at least {}", file, key, value, least);
    return value;
  };
  if (type == "llama3" || type == "linear") {
    m.rope_scaling = type;
    m.rope_factor = factor("factor", 1);
  } else if (type != "default") {
    fail_user("{}: rope type {} is not supported; redline knows default, linear and llama3", file, io::in_quotes(type));
  }
  if (type == "llama3") {
    m.rope_low_freq_factor = factor("low_freq_factor", 1e-6);
    m.rope_high_freq_factor = factor("high_freq_factor", 1e-6);
    m.rope_original_len = io::integer_at(rope, "original_max_position_embeddings", file);
    if (m.rope_original_len < 1 || !(m.rope_high_freq_factor > m.rope_low_freq_factor))
      fail_user(
          "{}: the rope parameters must have high_freq_factor above low_freq_factor and a positive "
          "original_max_position_embeddings",
          file);
  }
  for (const io::Json* place : {&rope, &json})
    if (has(*place, "partial_rotary_factor") && io::number_at(*place, "partial_rotary_factor", file) != 1.0)
      fail_user("{}: partial_rotary_factor is not supported; redline turns whole heads", file);
}

// Refuses settings that would make another model of the same weights.
void refuse_unsupported(const io::Json& json, const config::Model& m, const std::string& file) {
  if (io::boolean_or(json, "attention_bias", false, file))
    fail_user("{}: attention_bias is not supported; redline's linears have no bias", file);
  if (has(json, "hidden_act") && io::string_at(json, "hidden_act", file) != "silu")
    fail_user("{}: hidden_act {} is not supported; redline knows silu", file,
              io::in_quotes(io::string_at(json, "hidden_act", file)));
  if (has(json, "quantization_config"))
    fail_user("{}: quantization_config: quantized weights are not supported; use the model in bf16, f16 or f32", file);
  if (!has(json, "layer_types")) return;
  if (!json["layer_types"].is_array()) fail_user("{}: layer_types is not a list", file);
  if (json["layer_types"].size() != static_cast<std::size_t>(m.layers))
    fail_user("{}: layer_types names {}, and num_hidden_layers is {}; mend the one that is wrong", file,
              counted(json["layer_types"].size(), "layer"), m.layers);
  for (const io::Json& type : json["layer_types"])
    if (type != "full_attention")
      fail_user("{}: layer_types holds {}, which is not supported; redline attends to the whole document in each layer",
                file, type.is_string() ? io::in_quotes(type.get<std::string>()) : type.type_name());
}

// A family, and the name under which transformers knows it: its own, or an alias.
struct HfKind {
  const Family* family = nullptr;
  const HfAlias* alias = nullptr;

  std::string_view architecture() const { return alias ? alias->architecture : family->hf_architecture; }
  std::string_view model_type() const { return alias ? alias->model_type : family->hf_model_type; }
  const HfDefaults& defaults() const { return alias ? alias->defaults : family->hf_defaults; }
};

std::vector<HfKind> known_kinds() {
  std::vector<HfKind> all;
  for (const Family* family : families()) {
    all.push_back({family, nullptr});
    for (const HfAlias& alias : family->hf_aliases) all.push_back({family, &alias});
  }
  return all;
}

HfKind kind_of(const io::Json& json, const std::string& file) {
  std::string architecture;
  if (const auto it = json.find("architectures");
      it != json.end() && it->is_array() && !it->empty() && (*it)[0].is_string())
    architecture = (*it)[0].get<std::string>();
  const std::string type = has(json, "model_type") ? io::string_at(json, "model_type", file) : "";
  const std::vector<HfKind> known = known_kinds();
  const auto found = std::ranges::find_if(known, [&](const HfKind& kind) {
    return architecture.empty() ? type == kind.model_type() : architecture == kind.architecture();
  });
  if (found == known.end()) {
    std::vector<std::string_view> names;
    for (const HfKind& kind : known) names.push_back(kind.architecture());
    fail_user("{}: architecture {} is not supported; redline knows {}", file,
              io::in_quotes(architecture.empty() ? type : architecture), fmt::join(names, ", "));
  }
  if (!type.empty() && type != found->model_type())
    fail_user("{}: model_type is {}, but architectures names {}, whose type is {}; mend the one that is wrong", file,
              io::in_quotes(type), architecture, io::in_quotes(found->model_type()));
  return *found;
}

// Once for each file: a search reads one a hundred times.
void say_alias(const HfKind& kind, const std::string& file) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (kind.alias && said.insert(file).second)
    log::note("{}: {} is read as {}: {}", file, kind.architecture(), kind.family->hf_architecture, kind.alias->why);
}

}  // namespace

config::Model read_hf_config(FileSystem& files, const Path& path) {
  const io::Json json = io::read_json(files, path);
  const std::string file = path.string();
  if (!json.is_object()) fail_user("{}: not a JSON object", file);

  const HfKind kind = kind_of(json, file);
  const Family* family = kind.family;
  const HfDefaults& defaults = kind.defaults();

  config::Model m;
  m.family = family->name;
  m.qk_norm = family->decoder.qk_norm.has_value();
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
  m.tied = io::boolean_or(json, "tie_word_embeddings", false, file);
  m.norm_eps = has(json, "rms_norm_eps") ? io::number_at(json, "rms_norm_eps", file) : defaults.norm_eps;
  if (has(json, "initializer_range")) m.init_std = io::number_at(json, "initializer_range", file);
  m.max_positions =
      has(json, "max_position_embeddings") ? io::integer_at(json, "max_position_embeddings", file) : defaults.positions;
  if (m.max_positions < 1 || m.max_positions > (std::int64_t{1} << 30))
    fail_user("{}: max_position_embeddings is {}; it must be from 1 to 2^30", file, m.max_positions);
  for (const auto& [key, value] : {std::pair{"rms_norm_eps", m.norm_eps}, {"initializer_range", m.init_std}})
    if (!(value > 0)) fail_user("{}: {} is {}; it must be above 0", file, key, value);
  refuse_unsupported(json, m, file);
  read_rope(json, file, m);
  if (family->check_hf) family->check_hf(json, file);
  if (kind.alias && kind.alias->check) kind.alias->check(json, file);
  if (m.head_dim < 2 || m.head_dim % 2 || m.head_dim > config::kMaxHeadDim)
    fail_user("{}: head_dim is {}; it must be even, from 2 to {}", file, m.head_dim, config::kMaxHeadDim);
  say_alias(kind, file);
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

io::Json hf_config(const config::Model& m, const HfDetails& details) {
  const Family& family = family_of(m);
  io::Json rope = io::Json::object();
  if (m.rope_scaling != "none") rope["factor"] = m.rope_factor;
  if (m.rope_scaling == "llama3") {
    rope["high_freq_factor"] = m.rope_high_freq_factor;
    rope["low_freq_factor"] = m.rope_low_freq_factor;
    rope["original_max_position_embeddings"] = m.rope_original_len;
  }
  rope["rope_theta"] = m.rope_theta;
  rope["rope_type"] = m.rope_scaling == "none" ? "default" : m.rope_scaling;
  io::Json json = {{"architectures", {family.hf_architecture}},
                   {"attention_bias", false},
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
  if (key == "model.max_positions" || key == "model.init_std") return Says::whoever_wrote;
  return Says::folder;
}

// 0 heads and an unset norm mean "as follows from the rest".
bool follows(std::string_view key, const config::Value& value) {
  if (std::holds_alternative<std::monostate>(value)) return true;
  return (key == "model.kv_heads" || key == "model.head_dim") && value == config::Value(std::int64_t{0});
}

}  // namespace

void take_model(config::Config& config, const config::Model& from, std::string_view where) {
  config::Config source;
  source.model = from;
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
