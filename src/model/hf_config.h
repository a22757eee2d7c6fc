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
// generation_config.json: the tokens that begin and end a text. Where a model has no padding token, its end token pads,
// since no row of the embedding depends on it there.
io::Json hf_generation(const config::Model& model, const HfDetails& details);

std::string_view hf_name_of(DType dtype);  // "bfloat16"

}  // namespace redline::model
