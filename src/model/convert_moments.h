// Converts a checkpoint's moments from eight bits to another type, or the other way round. Engine::load converts
// moments of other types, number by number.
#pragma once

#include <string>

#include "io/safetensors.h"
#include "model/engine.h"

namespace redline::model {

// Whether a tensor of a row must be converted: its file has codes where the row has none, or the other way round. The
// file may then lack the tensor of a row of scales.
bool is_converted(const optim::StateArray& row, const io::SafetensorsReader& file, const std::string& tensor);

// Converts through fp32, some megabytes at a time. Engine::load has checked the file's hashes before. A tensor that is
// missing or does not fit is a UserError.
void convert_moments(Engine& engine, const io::SafetensorsReader& file);

}  // namespace redline::model
