// Hugging Face's config.json to model.* and back.
#pragma once

#include "config/config.h"
#include "io/json.h"

namespace redline::model {

// An unsupported architecture, rope type, activation or bias is refused by name.
config::Model read_hf_config(FileSystem& files, const Path& path);

// `max_positions` is max_position_embeddings: the rows a run trained on.
io::Json hf_config(const config::Model& model, std::int64_t max_positions);

}  // namespace redline::model
