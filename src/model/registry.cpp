// The list of families: adding a model is its file and its entry here.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/words.h"
#include "config/load.h"
#include "io/json.h"
#include "model/family.h"
#include "model/lowering.h"

namespace redline::model {

extern const Family kGemma3, kLlama, kMistral, kMixtral, kOlmo2, kOlmo3, kOlmoe, kQwen2, kQwen3, kQwen3Moe, kSmolLm3;

namespace {

constexpr const Family* kFamilies[] = {&kLlama, &kQwen3,  &kOlmo2, &kQwen2,    &kMistral, &kSmolLm3,
                                       &kOlmo3, &kGemma3, &kOlmoe, &kQwen3Moe, &kMixtral};

// The names of families for which `has` holds.
template <class Has>
std::vector<std::string> names_of(const Has& has) {
  std::vector<std::string> names;
  for (const Family* f : kFamilies)
    if (has(*f)) names.emplace_back(f->name);
  return names;
}

// Whether a layer is every k-th; 0: none is.
bool is_every(std::size_t layer, std::int64_t k) { return k > 0 && (static_cast<std::int64_t>(layer) + 1) % k == 0; }

const Family& find(const std::string& name, std::string_view place) {
  for (const Family* f : kFamilies)
    if (f->name == name) return *f;
  const std::vector<std::string> names = names_of([](const Family&) { return true; });
  const std::string guess = config::nearest(name, names);
  fail_user("{}model.family must be one of {}, not {}{}", place, fmt::join(names, " | "), io::in_quotes(name),
            guess.empty() ? "" : fmt::format("; did you mean {}?", io::in_quotes(guess)));
}

}  // namespace

std::span<const Family* const> families() { return kFamilies; }

const Family& family_of(const config::Model& model) { return find(model.family, ""); }

bool has_window(const config::Model& m, std::size_t layer) {
  if (m.window == 0) return false;
  if (!m.layer_types.empty()) return m.layer_types.at(layer) == kSlidingAttention;
  return !is_every(layer, family_of(m).decoder.full_every);
}

bool has_rope(const config::Model& m, std::size_t layer) {
  if (!m.rope_layers.empty()) return m.rope_layers.at(layer) != 0;
  return !is_every(layer, family_of(m).decoder.no_rope_every);
}

bool has_experts(const config::Model& m, std::size_t layer) {
  return m.experts > 0 && std::ranges::find(m.dense_layers, static_cast<std::int64_t>(layer)) == m.dense_layers.end();
}

std::int64_t layers_with_experts(const config::Model& m) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) count += has_experts(m, i);
  return count;
}

void settle_layers(config::Model& m) {
  const DecoderDescription& d = family_of(m).decoder;
  if (d.experts) {
    m.norm_topk = m.norm_topk.value_or(d.experts->norm_topk);
    if (m.expert_ffn == 0) m.expert_ffn = m.ffn;
    if (!d.experts->dense_layers) m.ffn = m.expert_ffn;  // there is no other MLP
    std::ranges::sort(m.dense_layers);
    m.dense_layers.erase(std::ranges::unique(m.dense_layers).begin(), m.dense_layers.end());
  }
  m.qk_norm = d.qk_norm.has_value();
  m.qkv_bias = d.qkv_bias || m.attention_bias;
  const auto says = [&](bool (*of)(const config::Model&, std::size_t), config::Model as_family) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i)
      if (of(m, i) != of(as_family, i)) return true;
    return false;
  };
  config::Model silent = m;
  silent.layer_types.clear();
  silent.rope_layers.clear();
  if (!says(has_window, silent)) m.layer_types.clear();
  if (!says(has_rope, silent)) m.rope_layers.clear();
}

namespace {

// The settings of a family with experts, which go together; two names of one width are settled.
void require_experts(config::Config& config, const ExpertNames& names) {
  config::Model& m = config.model;
  const auto fail = [&](std::initializer_list<std::string_view> keys, const std::string& what) {
    fail_user("{}{}", config.origins.prefix(keys), what);
  };
  if (m.experts == 0)
    fail({"model.experts", "model.family"},
         fmt::format("model.experts is 0, and model.family \"{}\" has experts; set how many a layer has", m.family));
  if (m.experts_per_token < 1 || m.experts_per_token > m.experts)
    fail({"model.experts_per_token", "model.experts"},
         fmt::format("model.experts_per_token is {}; it must be from 1 to model.experts ({})", m.experts_per_token,
                     m.experts));
  if (names.always_norm_topk && m.norm_topk == false)
    fail({"model.norm_topk"}, fmt::format("model.norm_topk must be true for model.family \"{}\"", m.family));
  if (!names.dense_layers && m.expert_ffn > 0 && m.ffn != m.expert_ffn) {
    // One width has two names: the other one comes from a preset, or from a file that has all keys.
    const auto weight = [&](std::string_view key) {
      return config.origins.on_command_line(key) ? 2 : config.origins.written(key) ? 1 : 0;
    };
    const int ffn = weight("model.ffn"), expert_ffn = weight("model.expert_ffn");
    if (ffn == expert_ffn && ffn > 0)
      fail({"model.ffn", "model.expert_ffn"},
           fmt::format("model.ffn is {} and model.expert_ffn {}, but every layer of model.family \"{}\" has experts; "
                       "set one of the two",
                       m.ffn, m.expert_ffn, m.family));
    if (ffn > expert_ffn) m.expert_ffn = m.ffn;
    m.ffn = m.expert_ffn;
  }
  for (const std::int64_t layer : m.dense_layers)
    if (layer >= m.layers)
      fail({"model.dense_layers", "model.layers"},
           fmt::format("model.dense_layers names layer {}, and model.layers is {}; layers are counted from 0", layer,
                       m.layers));
  if (layers_with_experts(m) == 0)
    fail({"model.dense_layers"}, "model.dense_layers names every layer, so that none has experts; leave some out");
}

}  // namespace

void settle_family(config::Config& config) {
  config::Model& m = config.model;
  const Family& family = find(m.family, config.origins.prefix({"model.family"}));
  // What a family decides may be written, but not otherwise.
  const auto require_own = [&](std::string_view key, std::optional<bool> written, bool (*of)(const Family&)) {
    const bool own = of(family);
    if (written.value_or(own) != own)
      fail_user("{}{} must be {} for model.family \"{}\"; it is {} for {}",
                config.origins.prefix({key, "model.family"}), key, own, m.family, !own,
                fmt::join(names_of([&](const Family& f) { return of(f) != own; }), ", "));
  };
  require_own("model.qk_norm", m.qk_norm, [](const Family& f) { return f.decoder.qk_norm.has_value(); });
  if (!m.attention_bias)
    require_own("model.qkv_bias", m.qkv_bias, [](const Family& f) { return f.decoder.qkv_bias; });
  else if (m.qkv_bias == false)
    fail_user("{}model.qkv_bias must be true where model.attention_bias is; leave it out",
              config.origins.prefix({"model.qkv_bias", "model.attention_bias"}));
  // What only some families have.
  const auto require_can = [&](std::string_view key, bool written, bool (*can)(const Family&)) {
    if (written && !can(family))
      fail_user("{}{} is not for model.family \"{}\", which has no such part; {} have it",
                config.origins.prefix({key, "model.family"}), key, m.family, fmt::join(names_of(can), ", "));
  };
  require_can("model.window", m.window > 0, [](const Family& f) { return f.decoder.windows != WindowedLayers::none; });
  require_can("model.layer_types", !m.layer_types.empty(),
              [](const Family& f) { return f.decoder.windows == WindowedLayers::by_layer; });
  require_can("model.rope_layers", !m.rope_layers.empty(), [](const Family& f) { return f.decoder.no_rope_every > 0; });
  require_can("model.rope_local_theta", m.rope_local_theta > 0, [](const Family& f) { return f.decoder.local_rope; });
  require_can("model.query_pre_attn_scalar", m.query_pre_attn_scalar > 0,
              [](const Family& f) { return f.decoder.query_scalar; });
  require_can("model.attention_bias", m.attention_bias, [](const Family& f) { return f.decoder.attention_bias; });
  require_can("model.mlp_bias", m.mlp_bias, [](const Family& f) { return f.decoder.mlp_bias; });
  if (!m.rope_truncate && family.decoder.local_rope)
    fail_user("{}model.rope_truncate must be true for model.family \"{}\": transformers passes over it there",
              config.origins.prefix({"model.rope_truncate", "model.family"}), m.family);
  const auto experts = [](const Family& f) { return f.decoder.experts.has_value(); };
  require_can("model.experts", m.experts > 0, experts);
  require_can("model.experts_per_token", m.experts_per_token > 0, experts);
  require_can("model.expert_ffn", m.expert_ffn > 0, experts);
  require_can("model.norm_topk", m.norm_topk.has_value(), experts);
  require_can("model.router_z_loss", m.router_z_loss > 0, experts);
  const std::string balance = config::Model{}.router_balance;
  if (!experts(family) && !config.origins.known("model.router_balance")) m.router_balance = balance;  // an older run's
  require_can("model.router_balance", m.router_balance != balance, experts);
  require_can("model.dense_layers", !m.dense_layers.empty(),
              [](const Family& f) { return f.decoder.experts && f.decoder.experts->dense_layers; });
  if (experts(family)) require_experts(config, *family.decoder.experts);
  const auto require_each = [&](std::string_view key, std::size_t entries) {
    if (entries != 0 && entries != static_cast<std::size_t>(m.layers))
      fail_user("{}{} has {} of them, and model.layers is {}; it needs one for each layer",
                config.origins.prefix({key, "model.layers"}), key, entries, m.layers);
  };
  require_each("model.layer_types", m.layer_types.size());
  require_each("model.rope_layers", m.rope_layers.size());
  const bool sliding = std::ranges::find(m.layer_types, kSlidingAttention) != m.layer_types.end();
  if (!m.layer_types.empty() && sliding != (m.window > 0))
    fail_user(
        "{}model.layer_types has {} layer with sliding_attention, and model.window is {}; set the one that is "
        "missing, or leave both out",
        config.origins.prefix({"model.layer_types", "model.window"}), sliding ? "a" : "no", m.window);
  settle_layers(m);
}

std::vector<config::Key> keys_with_families() {
  std::vector<config::Key> keys = config::keys();
  for (config::Key& key : keys)
    if (key.name == "model.family")
      for (const Family* f : kFamilies) key.choices.push_back(f->name);
  return keys;
}

}  // namespace redline::model
