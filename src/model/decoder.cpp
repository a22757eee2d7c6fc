// The decoder block of LLaMA and Qwen3: rows of the parameter table, RoPE frequencies, and the forward pass.
#include "model/decoder.h"

#include <cmath>
#include <numbers>

namespace redline::model {

ops::HeadLayout head_layout(const config::Model& m) { return {m.heads, m.kv_heads, m.head_dim}; }

ParameterTable decoder_table(const config::Model& m) {
  const std::int64_t d = m.hidden, q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, f = m.ffn;
  const double std = m.init_std;
  // Products that end in the residual stream start smaller: 2 * layers of them add up there.
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(m.layers));

  ParameterTable t;
  // Matrices have weight decay, norms have none.
  const auto norm = [&](std::string name, std::int64_t width, std::string hf) {
    t.push_back({std::move(name), {width}, Init::ones, 0, false, {{std::move(hf), {width}}}});
  };
  const auto matrix = [&](std::string name, Shape shape, double start, std::vector<HfSlice> slices) {
    t.push_back({std::move(name), shape, Init::normal, start, true, std::move(slices)});
  };
  matrix("embedding", {m.vocab, d}, std, {{"model.embed_tokens.weight", {m.vocab, d}}});
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string name = fmt::format("layer {}/", i), hf = fmt::format("model.layers.{}.", i);
    const std::string attention = hf + "self_attn.", mlp = hf + "mlp.";
    norm(name + "attention norm", d, hf + "input_layernorm.weight");
    matrix(name + "qkv", {q + 2 * kv, d}, std,
           {{attention + "q_proj.weight", {q, d}},
            {attention + "k_proj.weight", {kv, d}},
            {attention + "v_proj.weight", {kv, d}}});
    if (*m.qk_norm) {
      norm(name + "q norm", m.head_dim, attention + "q_norm.weight");
      norm(name + "k norm", m.head_dim, attention + "k_norm.weight");
    }
    matrix(name + "out", {d, q}, residual_std, {{attention + "o_proj.weight", {d, q}}});
    norm(name + "mlp norm", d, hf + "post_attention_layernorm.weight");
    matrix(name + "gate_up", {2 * f, d}, std, {{mlp + "gate_proj.weight", {f, d}}, {mlp + "up_proj.weight", {f, d}}});
    matrix(name + "down", {d, f}, residual_std, {{mlp + "down_proj.weight", {d, f}}});
  }
  norm("final norm", d, "model.norm.weight");
  if (!m.tied) matrix("head", {m.vocab, d}, std, {{"lm_head.weight", {m.vocab, d}}});
  return t;
}

Params decoder_params(const config::Model& m, const ParameterTable& table,
                      const std::vector<program::ValueId>& values) {
  std::size_t next = 0;
  const auto take = [&](const std::string& name) {
    REDLINE_CHECK(next < table.size() && table[next].name == name, "the table has no {} here", name);
    return values[next++];
  };
  Params p;
  p.embedding = take("embedding");
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string name = fmt::format("layer {}/", i);
    LayerParams& l = p.layers.emplace_back();
    l.attention_norm = take(name + "attention norm");
    l.qkv = take(name + "qkv");
    if (*m.qk_norm) {
      l.q_norm = take(name + "q norm");
      l.k_norm = take(name + "k norm");
    }
    l.out = take(name + "out");
    l.mlp_norm = take(name + "mlp norm");
    l.gate_up = take(name + "gate_up");
    l.down = take(name + "down");
  }
  p.final_norm = take("final norm");
  p.head = m.tied ? p.embedding : take("head");
  return p;
}

std::vector<float> rope_table(const config::Model& m, std::int64_t positions) {
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
  return table;
}

program::ValueId decoder_forward(program::Builder& b, const config::Model& m, const Params& p,
                                 const program::BatchValues& in, program::ValueId rope) {
  const float eps = static_cast<float>(m.norm_eps), drop = static_cast<float>(m.dropout);
  const ops::HeadLayout heads = head_layout(m);

  using program::Part;
  b.at(Part::embedding);
  program::ValueId residual = b.embed(in.tokens, p.embedding), branch = program::kAbsent;
  for (std::size_t i = 0; i < p.layers.size(); ++i) {
    const LayerParams& l = p.layers[i];
    b.at(Part::attention, i);
    auto [r1, x] = b.add_norm(residual, branch, l.attention_norm, eps, "attention norm");
    auto qkv = b.rope_qk_norm(b.linear(x, l.qkv, "qkv"), l.q_norm, l.k_norm, in.positions, rope, heads, eps);
    auto mixed = b.dropout(b.linear(b.attention(qkv, in, i, heads), l.out, "out"), drop, "attention dropout");
    b.at(Part::mlp, i);
    auto [r2, y] = b.add_norm(r1, mixed, l.mlp_norm, eps, "mlp norm");
    residual = r2;
    branch = b.dropout(b.linear(b.swiglu(b.linear(y, l.gate_up, "gate_up")), l.down, "down"), drop, "mlp dropout");
  }
  b.at(Part::head);
  return b.add_norm(residual, branch, p.final_norm, eps, "final norm").y;
}

}  // namespace redline::model
