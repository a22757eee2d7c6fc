// Rows of the parameter table, RoPE's frequencies, a layer's two branches, and the forward passes that families share.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/family.h"
#include "program/builder.h"

namespace redline::model {

ParameterTable decoder_table(const config::Model& m) {
  const DecoderDescription& description = family_of(m).decoder;
  const std::int64_t d = m.hidden, q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, f = m.ffn;
  const double std = m.init_std;
  // Products that end in the residual stream start smaller: 2 * layers of them add up there.
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(m.layers));
  // Or, with zero_out, what writes there is zero: a layer then begins as nothing. A linear before a norm is not that:
  // the norm would make full size of its first small outputs, and a gradient hundreds of times as large.
  const bool zero_out = m.init == "zero_out";
  const bool end_norms = !description.attention_end_norm.empty();
  const Init out = zero_out && !description.norm_after && !end_norms ? Init::zeros : Init::normal;
  const Init of_norm = zero_out && description.norm_after ? Init::zeros : Init::ones;
  const Init of_end_norm = zero_out ? Init::zeros : Init::ones;

  ParameterTable t;
  // Matrices have weight decay, norms and biases have none.
  std::int32_t layer = program::kNoLayer;
  const auto name_of = [&](std::string_view name) { return program::Place{.layer = layer}.full(name); };
  const auto vector = [&](std::string_view name, std::int64_t width, std::vector<HfSlice> slices, Init init) {
    t.push_back({name_of(name), {width}, init, 0, false, std::move(slices), ParameterKind::vector, layer});
  };
  const auto norm = [&](std::string_view name, std::int64_t width, std::string hf, Init init = Init::ones) {
    if (description.one_plus) init = init == Init::ones ? Init::zeros : Init::minus_ones;
    vector(name, width, {{std::move(hf), {width}}}, init);
  };
  const auto matrix = [&](ParameterKind kind, std::string_view name, const Shape& shape, double start,
                          std::vector<HfSlice> slices, Init init = Init::normal) {
    ParameterSpec& p =
        t.emplace_back(ParameterSpec{name_of(name), shape, init, start, true, std::move(slices), kind, layer});
    p.travels = Travels::alone;
    if (kind != ParameterKind::linear) return;
    p.by_matrix = true;
    p.fp8 = name;
    p.travels = Travels::with_layer;
  };
  // Of all experts of a layer one row each for gate_up and down, in which every expert's tensors are slices. A router
  // is no matrix for Muon: its rows are the experts' own directions. Routers stand behind all matrices, so that these
  // are one range, and travel with what is small.
  ParameterTable routers;
  const auto experts = [&](const std::string& hf, Init out_init) {
    const ExpertNames& names = *description.experts;
    const std::int64_t width = m.expert_ffn > 0 ? m.expert_ffn : f, count = m.experts;
    const std::string block = fmt::format("{}{}.", hf, names.block);
    routers.push_back({name_of("router"),
                       {count, d},
                       Init::normal,
                       std,
                       true,
                       {{block + "gate.weight", {count, d}}},
                       ParameterKind::linear,
                       layer});
    std::vector<HfSlice> gate_up, down;
    for (std::int64_t e = 0; e < count; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", block, e);
      gate_up.push_back({fmt::format("{}{}.weight", expert, names.gate), {width, d}});
      gate_up.push_back({fmt::format("{}{}.weight", expert, names.up), {width, d}});
      down.push_back({fmt::format("{}{}.weight", expert, names.down), {d, width}});
    }
    matrix(ParameterKind::linear, "gate_up", {count, 2 * width, d}, std, std::move(gate_up));
    matrix(ParameterKind::linear, "down", {count, d, width}, residual_std, std::move(down), out_init);
    for (ParameterSpec* p : {&t[t.size() - 2], &t.back()}) {
      p->fp8 = "expert_" + p->fp8;
      p->active = static_cast<double>(m.experts_per_token) / static_cast<double>(count);
    }
  };
  matrix(ParameterKind::embedding, "embedding", {m.vocab, d}, std, {{"model.embed_tokens.weight", {m.vocab, d}}});
  for (layer = 0; layer < m.layers; ++layer) {
    const std::string hf = fmt::format("model.layers.{}.", layer);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    norm("attention norm", d, hf + std::string(description.attention_norm), of_norm);
    matrix(ParameterKind::linear, "qkv", {q + 2 * kv, d}, std,
           {{attention + "q_proj.weight", {q, d}},
            {attention + "k_proj.weight", {kv, d}},
            {attention + "v_proj.weight", {kv, d}}});
    if (description.qkv_bias || m.attention_bias)
      vector("qkv bias", q + 2 * kv,
             {{attention + "q_proj.bias", {q}}, {attention + "k_proj.bias", {kv}}, {attention + "v_proj.bias", {kv}}},
             Init::zeros);
    if (description.qk_norm) {
      const bool of_heads = description.qk_norm == ops::NormOver::head;
      norm("q norm", of_heads ? m.head_dim : q, attention + "q_norm.weight");
      norm("k norm", of_heads ? m.head_dim : kv, attention + "k_norm.weight");
    }
    matrix(ParameterKind::linear, "out", {d, q}, residual_std, {{attention + "o_proj.weight", {d, q}}}, out);
    if (m.attention_bias) vector("out bias", d, {{attention + "o_proj.bias", {d}}}, Init::zeros);
    if (end_norms) norm("attention end norm", d, hf + std::string(description.attention_end_norm), of_end_norm);
    norm("mlp norm", d, hf + std::string(description.mlp_norm), of_norm);
    if (has_experts(m, static_cast<std::size_t>(layer))) {
      experts(hf, out);
    } else {
      matrix(ParameterKind::linear, "gate_up", {2 * f, d}, std,
             {{mlp + "gate_proj.weight", {f, d}}, {mlp + "up_proj.weight", {f, d}}});
      matrix(ParameterKind::linear, "down", {d, f}, residual_std, {{mlp + "down_proj.weight", {d, f}}}, out);
      if (m.mlp_bias) {
        vector("gate_up bias", 2 * f, {{mlp + "gate_proj.bias", {f}}, {mlp + "up_proj.bias", {f}}}, Init::zeros);
        vector("down bias", d, {{mlp + "down_proj.bias", {d}}}, Init::zeros);
      }
    }
    if (end_norms) norm("mlp end norm", d, hf + std::string(description.mlp_end_norm), of_end_norm);
  }
  layer = program::kNoLayer;
  norm("final norm", d, "model.norm.weight");
  if (!m.tied) matrix(ParameterKind::head, "head", {m.vocab, d}, std, {{"lm_head.weight", {m.vocab, d}}});
  t.insert(t.end(), routers.begin(), routers.end());
  return t;
}

namespace {

// The frequency of pair j of a head, stretched as model.rope_scaling says.
double stretched(const config::Model& m, std::int64_t j, double frequency) {
  using std::numbers::pi;
  const double length = static_cast<double>(m.rope_original_len), dim = static_cast<double>(m.head_dim);
  if (m.rope_scaling == "linear") return frequency / m.rope_factor;
  if (m.rope_scaling == "llama3") {
    // Long wavelengths are stretched by the factor, short ones kept, and those between are blended.
    const double wavelength = 2 * pi / frequency;
    const double longest = length / m.rope_low_freq_factor, shortest = length / m.rope_high_freq_factor;
    if (wavelength > longest) return frequency / m.rope_factor;
    if (wavelength < shortest) return frequency;
    const double blend =
        (length / wavelength - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
    return (1 - blend) * frequency / m.rope_factor + blend * frequency;
  }
  if (m.rope_scaling == "yarn") {
    // The pair that turns so often within the original length; between two of these the stretch grows.
    const auto pair_of = [&](double turns) {
      return dim * std::log(length / (turns * 2 * pi)) / (2 * std::log(m.rope_theta));
    };
    const double first = pair_of(m.rope_beta_fast), last = pair_of(m.rope_beta_slow);
    const double low = std::max(m.rope_truncate ? std::floor(first) : first, 0.0);
    double high = std::min(m.rope_truncate ? std::ceil(last) : last, dim - 1);
    if (low == high) high += 0.001;
    const double stretch = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    return frequency * (stretch / m.rope_factor + 1 - stretch);
  }
  return frequency;
}

// The factor of turned queries and keys: with yarn's the scores are larger by its square.
double turned_factor(const config::Model& m) {
  if (m.rope_scaling != "yarn") return 1;
  return m.rope_attention_factor > 0 ? m.rope_attention_factor : 0.1 * std::log(m.rope_factor) + 1;
}

std::vector<float> rope_values(const config::Model& m, std::int64_t positions) {
  const std::int64_t half = m.head_dim / 2;
  const double factor = turned_factor(m);
  std::vector<double> frequencies;
  for (std::int64_t j = 0; j < half; ++j) {
    const double plain = std::pow(m.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(m.head_dim));
    frequencies.push_back(stretched(m, j, plain));
  }
  std::vector<float> table(static_cast<std::size_t>(positions * m.head_dim));
  for (std::int64_t t = 0; t < positions; ++t) {
    float* row = table.data() + t * m.head_dim;
    for (std::int64_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(j)];
      row[j] = static_cast<float>(factor * std::cos(angle));
      row[j + half] = static_cast<float>(factor * std::sin(angle));
    }
  }
  return table;
}

constexpr const char *kRopeTable = "rope table", *kLocalRopeTable = "local rope table";

}  // namespace

std::vector<ConstantSpec> rope_table(const config::Model& m, std::int64_t positions) {
  const Shape shape{positions, m.head_dim};
  std::vector<ConstantSpec> tables = {{kRopeTable, shape, [m, positions] { return rope_values(m, positions); }}};
  if (family_of(m).decoder.local_rope && m.window > 0) {
    config::Model local = m;
    local.rope_scaling = "none";
    if (m.rope_local_theta > 0) local.rope_theta = m.rope_local_theta;
    tables.push_back({kLocalRopeTable, shape, [local, positions] { return rope_values(local, positions); }});
  }
  return tables;
}

program::ValueId embed_tokens(program::Builder& b, const config::Model& m, const NamedValues& values,
                              const program::BatchValues& in) {
  b.at(program::Part::embedding);
  const float scale =
      family_of(m).decoder.scaled_embedding ? static_cast<float>(std::sqrt(static_cast<double>(m.hidden))) : 1.0f;
  return b.embed(in.tokens, values("embedding"), m.pad_token, scale);
}

ForwardValues final_norm(program::Builder& b, const config::Model& m, const NamedValues& values,
                         program::ValueId residual, program::ValueId branch) {
  b.at(program::Part::head);
  const auto norm = b.add_norm(residual, branch, values("final norm"), static_cast<float>(m.norm_eps), "final norm",
                               family_of(m).decoder.one_plus);
  return {.hidden = norm.y, .head = values(m.tied ? "embedding" : "head")};
}

DecoderLayer::DecoderLayer(program::Builder& b, const config::Model& m, const NamedValues& values,
                           const program::BatchValues& in, std::size_t index)
    : b_(b), m_(m), values_(values), in_(in), index_(index) {}

program::ValueId DecoderLayer::parameter(std::string_view name) const {
  return values_(fmt::format("layer {}/{}", index_, name));
}

program::ValueId DecoderLayer::linear(program::ValueId x, std::string_view name, bool bias) const {
  return b_.linear(x, parameter(name), name, bias ? parameter(fmt::format("{} bias", name)) : program::kAbsent);
}

program::ValueId DecoderLayer::attention(program::ValueId x) const {
  const DecoderDescription& description = family_of(m_).decoder;
  const ops::HeadLayout heads{m_.heads, m_.kv_heads, m_.head_dim};
  const std::optional<ops::NormOver> norm = description.qk_norm;
  const bool window = has_window(m_, index_);
  program::ValueId qkv = linear(x, "qkv", description.qkv_bias || m_.attention_bias);
  if (has_rope(m_, index_)) {
    const program::RopeValues rope{.q_norm = norm ? parameter("q norm") : program::kAbsent,
                                   .k_norm = norm ? parameter("k norm") : program::kAbsent,
                                   .positions = in_.positions,
                                   .table = values_(window && description.local_rope ? kLocalRopeTable : kRopeTable),
                                   .one_plus = description.one_plus};
    qkv = b_.rope_qk_norm(qkv, rope, heads, static_cast<float>(m_.norm_eps), norm.value_or(ops::NormOver::head));
  } else {
    REDLINE_CHECK(!norm, "a layer without RoPE has no norm on queries and keys");
  }
  program::AttentionForm form{.window = window ? m_.window : kNoWindow};
  if (m_.query_pre_attn_scalar > 0)
    form.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(m_.query_pre_attn_scalar)));
  const auto mixed = b_.attention(qkv, in_, index_, heads, form);
  return b_.dropout(linear(mixed, "out", m_.attention_bias), static_cast<float>(m_.dropout), "attention dropout");
}

program::ValueId DecoderLayer::mlp(program::ValueId x) const {
  const DecoderDescription& description = family_of(m_).decoder;
  const auto dropped = [&](program::ValueId y) { return b_.dropout(y, static_cast<float>(m_.dropout), "mlp dropout"); };
  if (!has_experts(m_, index_)) {
    const auto inner = b_.swiglu(linear(x, "gate_up", m_.mlp_bias), description.gate);
    return dropped(linear(inner, "down", m_.mlp_bias));
  }
  const auto routed = b_.route(x, parameter("router"), in_, m_.experts_per_token,
                               m_.norm_topk.value_or(description.experts->norm_topk));
  const auto rows = b_.gather_rows(x, routed);
  const auto inner =
      b_.swiglu(b_.grouped_linear(rows, parameter("gate_up"), routed.offsets, "gate_up"), description.gate);
  return dropped(b_.combine(b_.grouped_linear(inner, parameter("down"), routed.offsets, "down"), routed));
}

ForwardValues pre_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                               const program::BatchValues& in) {
  using program::Part;
  const float eps = static_cast<float>(m.norm_eps);
  program::ValueId residual = embed_tokens(b, m, values, in), branch = program::kAbsent;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
    const DecoderLayer layer(b, m, values, in, i);
    b.at(Part::attention, i);
    const auto [r1, x] = b.add_norm(residual, branch, layer.parameter("attention norm"), eps, "attention norm");
    branch = layer.attention(x);
    b.at(Part::mlp, i);
    const auto [r2, y] = b.add_norm(r1, branch, layer.parameter("mlp norm"), eps, "mlp norm");
    residual = r2;
    branch = layer.mlp(y);
  }
  return final_norm(b, m, values, residual, branch);
}

ForwardValues post_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                                const program::BatchValues& in) {
  using program::Part;
  const float eps = static_cast<float>(m.norm_eps);
  program::ValueId h = embed_tokens(b, m, values, in);
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
    const DecoderLayer layer(b, m, values, in, i);
    b.at(Part::attention, i);
    h = b.norm_add(h, layer.attention(h), layer.parameter("attention norm"), eps, "attention norm");
    b.at(Part::mlp, i);
    h = b.norm_add(h, layer.mlp(h), layer.parameter("mlp norm"), eps, "mlp norm");
  }
  return final_norm(b, m, values, h, program::kAbsent);
}

}  // namespace redline::model
