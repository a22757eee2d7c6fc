// Hugging Face's config.json to model.* and back.
#pragma once

#include "base/dtype.h"
#include "config/config.h"
#include "io/json.h"

namespace redline::model {

// An unsupported architecture, rope type, activation, bias, window or quantization is refused by name. max_positions is
// max_position_embeddings.
config::Model read_hf_config(FileSystem& files, const Path& path);

// The keys of config.json beyond the model itself.
struct HfDetails {
  std::int64_t max_positions = 0;         // max_position_embeddings
  DType dtype = DType::f32;               // of the weights beside it
  io::Json bos = nullptr, eos = nullptr;  // token ids: a number, a list of them, or null
};
io::Json hf_config(const config::Model& model, const HfDetails& details);
// generation_config.json: where a text begins and ends. A model without a token for padding pads with its end there,
// where no row of the embedding depends on it.
io::Json hf_generation(const config::Model& model, const HfDetails& details);

std::string_view hf_name_of(DType dtype);  // "bfloat16"

}  // namespace redline::model
