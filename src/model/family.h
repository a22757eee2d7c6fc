// The families of models redline knows. A family owns its parameters, its constants, its forward pass and its Hugging
// Face face; no other code knows a family by name. One file a family; registry.cpp lists them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "config/config.h"
#include "config/keys.h"
#include "io/json_fwd.h"
#include "model/parameters.h"
#include "ops/rope_qk_norm.h"
#include "ops/swiglu.h"
#include "program/program_set.h"

namespace redline::program {
class Builder;
}

namespace redline::model {

// The constants that a program is given once and only reads: a family's tables of numbers that are not learned.
struct ConstantSpec {
  std::string name;
  Shape shape;
  std::function<std::vector<float>()> make;
};

// The values declared for parameters and constants, by the names that the family gave them.
class NamedValues {
 public:
  void add(std::string name, program::ValueId value) { values_.emplace(std::move(name), value); }
  program::ValueId operator()(std::string_view name) const {
    const auto it = values_.find(name);
    REDLINE_CHECK(it != values_.end(), "the family has no {} in its tables", name);
    return it->second;
  }

 private:
  std::map<std::string, program::ValueId, std::less<>> values_;
};

// The end of a forward pass: the input of the head, and the head's weight.
struct ForwardValues {
  program::ValueId hidden, head;
};

// The layers that may have a window (model.window).
enum class WindowedLayers : std::uint8_t { none, every_layer, by_layer };
inline constexpr std::string_view kFullAttention = "full_attention", kSlidingAttention = "sliding_attention";

// What layers with experts have in place of the MLP, and how Hugging Face names it.
struct ExpertNames {
  std::string_view block = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
  bool norm_topk = false;         // where model.norm_topk is silent
  bool always_norm_topk = false;  // whatever it says
  bool dense_layers = false;      // some layers may have an MLP
};

// The differences between decoders of LLaMA's kind.
struct DecoderDescription {
  std::optional<ops::NormOver> qk_norm = {};                   // an RMSNorm on queries and keys
  std::string_view attention_norm = "input_layernorm.weight";  // in a layer, as Hugging Face names it
  std::string_view mlp_norm = "post_attention_layernorm.weight";
  bool norm_after = false;  // a branch ends in its norm, which then writes into the residual stream, not in a linear
  // Norms at the ends of the branches beside those before them; empty: none.
  std::string_view attention_end_norm = {}, mlp_end_norm = {};
  bool one_plus = false;          // norms multiply by 1 + w
  bool qkv_bias = false;          // on q, k and v, not on the projection after attention
  bool attention_bias = false;    // model.attention_bias may be set
  bool mlp_bias = false;          // and model.mlp_bias
  bool scaled_embedding = false;  // by the root of hidden
  bool query_scalar = false;      // model.query_pre_attn_scalar counts
  ops::Gate gate = ops::Gate::silu;
  WindowedLayers windows = WindowedLayers::none;
  std::int64_t full_every = 0;  // unless model.layer_types says, every so-manieth layer has no window; 0: all have it
  bool local_rope = false;      // layers with a window have a table of their own, which is not stretched
  std::optional<ExpertNames> experts = {};
  std::int64_t no_rope_every = 0;  // unless model.rope_layers says, every so-manieth layer has no RoPE; 0: all have it
};

// The values that a config.json means where it is silent.
struct HfDefaults {
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::int64_t kv_heads = 0;  // 0: num_attention_heads
  double norm_eps = 1e-6;
  std::int64_t positions = 2048;
  std::int64_t pad_token = -1;  // -1: none
  bool tied = false;
  double rope_theta = 10000, rope_local_theta = 0;  // of layers with a window; 0: they have no base of their own
  std::int64_t window = 0;                          // of sliding_window
  bool window_switch = false;                       // sliding_window counts with use_sliding_window only
  bool whole_heads = false;   // hidden_size must be a multiple of num_attention_heads, whatever head_dim is
  bool filled_heads = false;  // heads of head_dim must fill hidden_size
};

struct Family {
  std::string_view name;             // model.family
  std::string_view hf_architecture;  // "LlamaForCausalLM"
  std::string_view hf_model_type;    // "llama"
  DecoderDescription decoder = {};
  HfDefaults hf_defaults = {};
  std::span<const std::string_view> hf_keys = {};  // of config.json that only this family has

  ParameterTable (*table)(const config::Model&);
  std::vector<ConstantSpec> (*constants)(const config::Model&, std::int64_t positions);
  ForwardValues (*forward)(program::Builder&, const config::Model&, const NamedValues&, const program::BatchValues&);
  // For keys of config.json that not all families share: one function reads them, or refuses by name those that we
  // cannot run, the other writes those that transformers expects.
  void (*read_hf)(const io::Json& json, std::string_view file, config::Model& model) = nullptr;
  void (*write_hf)(const config::Model& model, io::Json& json) = nullptr;
};

std::span<const Family* const> families();
const Family& family_of(const config::Model& model);

// For config::load() and config::parse(): fills in settings that the family decides (settle_layers). A name that no
// family has, or a setting that the family cannot have, is a UserError with its place.
void settle_family(config::Config& config);

// Fills in qk_norm and qkv_bias, and what experts leave open, and empties lists of layers that say what the family does
// anyway.
void settle_layers(config::Model& model);
// What a layer has, by model.layer_types and model.rope_layers, or as the family does where these are empty.
bool has_window(const config::Model& model, std::size_t layer);
bool has_rope(const config::Model& model, std::size_t layer);
bool has_experts(const config::Model& model, std::size_t layer);
std::int64_t layers_with_experts(const config::Model& model);
// sliding_window and layer_types of config.json.
void write_windows(const config::Model& model, io::Json& json);

// The table of keys, with the families as the choices of model.family.
std::vector<config::Key> keys_with_families();

// The parts of decoders of LLaMA's kind: their table of parameters, RoPE's constants, and two forward passes: with a
// norm before each branch, as most have it, and with one after each, as OLMo's.

ParameterTable decoder_table(const config::Model& m);

// "rope table", [positions, head_dim]: cos and sin of every position and frequency, stretched as model.rope_scaling
// says. "local rope table" is that of layers with a window, where it is another.
std::vector<ConstantSpec> rope_table(const config::Model& m, std::int64_t positions);

// A forward pass is embed_tokens, layers, final_norm. The branch is the value that is not yet added to the residual
// stream, or absent.
program::ValueId embed_tokens(program::Builder& b, const config::Model& m, const NamedValues& values,
                              const program::BatchValues& in);
ForwardValues final_norm(program::Builder& b, const config::Model& m, const NamedValues& values,
                         program::ValueId residual, program::ValueId branch);

// One layer: its parameters, and its two branches without the norms around them.
class DecoderLayer {
 public:
  DecoderLayer(program::Builder& b, const config::Model& m, const NamedValues& values, const program::BatchValues& in,
               std::size_t index);

  program::ValueId parameter(std::string_view name) const;  // "mlp norm" of this layer
  program::ValueId attention(program::ValueId x) const;
  program::ValueId mlp(program::ValueId x) const;

 private:
  program::ValueId linear(program::ValueId x, std::string_view name, bool bias) const;

  program::Builder& b_;
  const config::Model& m_;
  const NamedValues& values_;
  const program::BatchValues& in_;
  std::size_t index_;
};

// h = h + attention(norm(h));  h = h + mlp(norm(h));  and a last norm.
ForwardValues pre_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                               const program::BatchValues& in);
// h = h + norm(attention(h));  h = h + norm(mlp(h));  and a last norm. A branch reads the residual stream itself.
ForwardValues post_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                                const program::BatchValues& in);

}  // namespace redline::model
