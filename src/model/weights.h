// Matches the tensors of a folder with a model: each parameter must have its tensor, with its shape, and nothing may be
// left over.
#pragma once

#include <vector>

#include "config/config.h"
#include "io/safetensors.h"
#include "model/parameters.h"

namespace redline::model {

// One file of the folder: its tensors in the file's order, and the parameter that each of them is.
struct MatchedFile {
  const io::WeightFiles::File* file = nullptr;
  std::vector<const io::StoredTensor*> tensors;
  std::vector<const StoredParameter*> parameters;
};

// A missing, superfluous or misshapen tensor is a UserError that names it; so is one of a type that holds no weights.
// The result points into both arguments.
std::vector<MatchedFile> match_weights(const io::WeightFiles& weights, const config::Model& model,
                                       const FlatLayout& layout);

// A UserError where the files hold fewer weights than the model has, so that untrusted numbers allocate nothing, not
// even a table.
void check_size(const io::WeightFiles& weights, const config::Model& model);

}  // namespace redline::model
