// Rows of the parameter table, RoPE's frequencies, and the forward pass of LLaMA and Qwen3.
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
  const Init out = zero_out && !description.norm_after ? Init::zeros : Init::normal;
  const Init of_norm = zero_out && description.norm_after ? Init::zeros : Init::ones;

  ParameterTable t;
  // Matrices have weight decay, norms have none.
  std::int32_t layer = program::kNoLayer;
  const auto name_of = [&](std::string_view name) { return program::Place{.layer = layer}.full(name); };
  const auto norm = [&](std::string_view name, std::int64_t width, std::string hf, Init init = Init::ones) {
    t.push_back({name_of(name), {width}, init, 0, false, {{std::move(hf), {width}}}, ParameterKind::vector, layer});
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
  matrix(ParameterKind::embedding, "embedding", {m.vocab, d}, std, {{"model.embed_tokens.weight", {m.vocab, d}}});
  for (layer = 0; layer < m.layers; ++layer) {
    const std::string hf = fmt::format("model.layers.{}.", layer);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    norm("attention norm", d, hf + std::string(description.attention_norm), of_norm);
    matrix(ParameterKind::linear, "qkv", {q + 2 * kv, d}, std,
           {{attention + "q_proj.weight", {q, d}},
            {attention + "k_proj.weight", {kv, d}},
            {attention + "v_proj.weight", {kv, d}}});
    if (description.qk_norm) {
      const bool of_heads = description.qk_norm == ops::NormOver::head;
      norm("q norm", of_heads ? m.head_dim : q, attention + "q_norm.weight");
      norm("k norm", of_heads ? m.head_dim : kv, attention + "k_norm.weight");
    }
    matrix(ParameterKind::linear, "out", {d, q}, residual_std, {{attention + "o_proj.weight", {d, q}}}, out);
    norm("mlp norm", d, hf + std::string(description.mlp_norm), of_norm);
    matrix(ParameterKind::linear, "gate_up", {2 * f, d}, std,
           {{mlp + "gate_proj.weight", {f, d}}, {mlp + "up_proj.weight", {f, d}}});
    matrix(ParameterKind::linear, "down", {d, f}, residual_std, {{mlp + "down_proj.weight", {d, f}}}, out);
  }
  layer = program::kNoLayer;
  norm("final norm", d, "model.norm.weight");
  if (!m.tied) matrix(ParameterKind::head, "head", {m.vocab, d}, std, {{"lm_head.weight", {m.vocab, d}}});
  return t;
}

std::vector<ConstantSpec> rope_table(const config::Model& m, std::int64_t positions) {
  const std::int64_t half = m.head_dim / 2;
  std::vector<float> table(static_cast<std::size_t>(positions * m.head_dim));
  for (std::int64_t j = 0; j < half; ++j) {
    double frequency = std::pow(m.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(m.head_dim));
    if (m.rope_scaling == "linear") frequency /= m.rope_factor;
    if (m.rope_scaling == "llama3") {
      // Long wavelengths are stretched by the factor, short ones kept, and those between are blended.
      const double wavelength = 2 * std::numbers::pi / frequency, length = static_cast<double>(m.rope_original_len);
      const double longest = length / m.rope_low_freq_factor, shortest = length / m.rope_high_freq_factor;
      if (wavelength > longest) {
        frequency /= m.rope_factor;
      } else if (wavelength >= shortest) {
        const double blend =
            (length / wavelength - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
        frequency = (1 - blend) * frequency / m.rope_factor + blend * frequency;
      }
    }
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      float* row = table.data() + t * m.head_dim;
      row[j] = static_cast<float>(std::cos(angle));
      row[j + half] = static_cast<float>(std::sin(angle));
    }
  }
  return {{"rope table", {positions, m.head_dim}, std::move(table)}};
}

program::ValueId embed_tokens(program::Builder& b, const config::Model& m, const NamedValues& values,
                              const program::BatchValues& in) {
  b.at(program::Part::embedding);
  return b.embed(in.tokens, values("embedding"), m.pad_token);
}

ForwardValues final_norm(program::Builder& b, const config::Model& m, const NamedValues& values,
                         program::ValueId residual, program::ValueId branch) {
  b.at(program::Part::head);
  const auto norm = b.add_norm(residual, branch, values("final norm"), static_cast<float>(m.norm_eps), "final norm");
  return {.hidden = norm.y, .head = values(m.tied ? "embedding" : "head")};
}

DecoderLayer::DecoderLayer(program::Builder& b, const config::Model& m, const NamedValues& values,
                           const program::BatchValues& in, std::size_t index)
    : b_(b), m_(m), values_(values), in_(in), index_(index) {}

program::ValueId DecoderLayer::parameter(std::string_view name) const {
  return values_(fmt::format("layer {}/{}", index_, name));
}

program::ValueId DecoderLayer::attention(program::ValueId x) const {
  const ops::HeadLayout heads{m_.heads, m_.kv_heads, m_.head_dim};
  const std::optional<ops::NormOver> norm = family_of(m_).decoder.qk_norm;
  const program::RopeValues rope{.q_norm = norm ? parameter("q norm") : program::kAbsent,
                                 .k_norm = norm ? parameter("k norm") : program::kAbsent,
                                 .positions = in_.positions,
                                 .table = values_("rope table")};
  const auto qkv = b_.rope_qk_norm(b_.linear(x, parameter("qkv"), "qkv"), rope, heads, static_cast<float>(m_.norm_eps),
                                   norm.value_or(ops::NormOver::head));
  const auto mixed = b_.attention(qkv, in_, index_, heads);
  return b_.dropout(b_.linear(mixed, parameter("out"), "out"), static_cast<float>(m_.dropout), "attention dropout");
}

program::ValueId DecoderLayer::mlp(program::ValueId x) const {
  const auto inner = b_.swiglu(b_.linear(x, parameter("gate_up"), "gate_up"));
  return b_.dropout(b_.linear(inner, parameter("down"), "down"), static_cast<float>(m_.dropout), "mlp dropout");
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

}  // namespace redline::model
