// Hugging Face's config.json to model.* and back, and model.init_from, which takes the shape of a model from the folder
// with its first weights.
#pragma once

#include <string_view>

#include "base/dtype.h"
#include "config/config.h"
#include "config/load.h"
#include "io/json.h"

namespace redline::model {

// An unsupported architecture, rope type, activation, bias, window or quantization is refused by name, and so is a key
// that nobody here knows, and a file that contradicts itself. max_positions is max_position_embeddings.
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

// Copies `from` into [model], except settings of training (dropout) and max_positions, which the user may widen. A key
// that the user wrote with another value is a UserError that names it. `where` is the file that `from` was read from.
void take_model(config::Config& config, const config::Model& from, std::string_view where);

// For config::load(): takes the model from the folder that model.init_from names, if any, and with it the tokenizer of
// text; else the vocabulary that the data have, where nothing says it. Fills in the family's own settings.
config::Complete complete_model(FileSystem& files);

}  // namespace redline::model
