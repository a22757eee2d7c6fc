// Brings files into an engine: matches the tensors of a folder with a model, and converts moments. Engine::load itself,
// which engine.h declares, is in weights.cpp as well.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "io/safetensors.h"
#include "model/parameters.h"

namespace redline::model {

class Engine;

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

// Moments of a checkpoint in eight bits become another type, or the other way round. Engine::load converts moments of
// other types, number by number.

// Whether a tensor of a row must be converted: its file has codes where the row has none, or the other way round. The
// file may then lack the tensor of a row of scales.
bool is_converted(const optim::StateArray& row, const io::SafetensorsReader& file, const std::string& tensor);

// Converts through fp32, some megabytes at a time. Engine::load has checked the file's hashes before. A tensor that is
// missing or does not fit is a UserError.
void convert_moments(Engine& engine, const io::SafetensorsReader& file);

}  // namespace redline::model
