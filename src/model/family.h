// The families of models redline knows, and their Hugging Face faces. One file a family; registry.cpp lists them.
#pragma once

#include <span>
#include <string_view>

#include "config/config.h"
#include "io/json.h"
#include "model/decoder.h"

namespace redline::model {

struct Family {
  std::string_view name;             // model.family
  std::string_view hf_architecture;  // "LlamaForCausalLM"
  std::string_view hf_model_type;    // "llama"

  ParameterTable (*table)(const config::Model&);
  program::ValueId (*forward)(program::Builder&, const config::Model&, const Params&, const program::BatchValues&,
                              program::ValueId rope);
  // What config.json holds beyond what all families share, in both directions. Refuses what we cannot run, by name.
  void (*read_hf)(const io::Json& json, std::string_view file, config::Model& model);
  void (*write_hf)(const config::Model& model, io::Json& json);
};

extern const Family kLlama, kQwen3;

std::span<const Family* const> families();
const Family& family_of(const config::Model& model);

}  // namespace redline::model
