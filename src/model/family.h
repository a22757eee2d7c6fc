// The families of models redline knows. A family owns its parameters, its constants, its forward pass and its Hugging
// Face face; no other code knows a family by name. One file a family; registry.cpp lists them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "config/config.h"
#include "config/keys.h"
#include "io/json_fwd.h"
#include "model/parameters.h"
#include "ops/rope_qk_norm.h"
#include "program/program_set.h"

namespace redline::program {
class Builder;
}

namespace redline::model {

// The constants that a program is given once and only reads: a family's tables of numbers that are not learned.
struct ConstantSpec {
  std::string name;
  Shape shape;
  std::vector<float> data;
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

// The differences between decoders of LLaMA's kind.
struct DecoderDescription {
  std::optional<ops::NormOver> qk_norm = {};                   // an RMSNorm on queries and keys
  std::string_view attention_norm = "input_layernorm.weight";  // in a layer, as Hugging Face names it
  std::string_view mlp_norm = "post_attention_layernorm.weight";
  bool norm_after = false;  // a branch ends in its norm, which then writes into the residual stream, not in a linear
};

// The values that a config.json means where it is silent.
struct HfDefaults {
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::int64_t kv_heads = 0;  // 0: num_attention_heads
  double norm_eps = 1e-6;
  std::int64_t positions = 2048;
  std::int64_t pad_token = -1;  // -1: none
};

// An architecture of transformers whose models are a family's under other names.
struct HfAlias {
  std::string_view architecture, model_type;  // "MistralForCausalLM", "mistral"
  HfDefaults defaults = {};
  void (*check)(const io::Json& json, std::string_view file) = nullptr;  // refuses by name what is not the family's
  std::string_view why;                                                  // for whoever reads one
};

struct Family {
  std::string_view name;             // model.family
  std::string_view hf_architecture;  // "LlamaForCausalLM"
  std::string_view hf_model_type;    // "llama"
  DecoderDescription decoder = {};
  HfDefaults hf_defaults = {};
  std::span<const HfAlias> hf_aliases = {};

  ParameterTable (*table)(const config::Model&);
  std::vector<ConstantSpec> (*constants)(const config::Model&, std::int64_t positions);
  ForwardValues (*forward)(program::Builder&, const config::Model&, const NamedValues&, const program::BatchValues&);
  // For keys of config.json that not all families share: one function refuses by name those that we cannot run, the
  // other writes those that transformers expects.
  void (*check_hf)(const io::Json& json, std::string_view file) = nullptr;
  void (*write_hf)(const config::Model& model, io::Json& json) = nullptr;
};

std::span<const Family* const> families();
const Family& family_of(const config::Model& model);

// For config::load() and config::parse(): fills in settings that the family decides (model.qk_norm). A name that no
// family has, or a setting that the family cannot have, is a UserError with its place.
void settle_family(config::Config& config);

// The table of keys, with the families as the choices of model.family.
std::vector<config::Key> keys_with_families();

// The parts of decoders of LLaMA's kind: their table of parameters, RoPE's constants, and the forward pass with a norm
// before each branch, which LLaMA and Qwen3 share.

ParameterTable decoder_table(const config::Model& m);

// "rope table", [positions, head_dim]: cos and sin of every position and frequency, stretched as model.rope_scaling
// says.
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
  program::Builder& b_;
  const config::Model& m_;
  const NamedValues& values_;
  const program::BatchValues& in_;
  std::size_t index_;
};

// h = h + attention(norm(h));  h = h + mlp(norm(h));  and a last norm.
ForwardValues pre_norm_forward(program::Builder& b, const config::Model& m, const NamedValues& values,
                               const program::BatchValues& in);

}  // namespace redline::model
