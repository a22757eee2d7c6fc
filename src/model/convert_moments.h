// Moments of a checkpoint that were kept in eight bits and are not any more, or the other way round. Moments of other
// types are converted by Engine::load, number by number.
#pragma once

#include <string>

#include "io/safetensors.h"
#include "model/engine.h"

namespace redline::model {

// Whether a tensor of a row is not loaded as it is: its file has codes where the row has none, or it is the other way
// round; the file of a row of scales may then have none.
bool is_converted(const optim::StateArray& row, const io::SafetensorsReader& file, const std::string& tensor);

// Converts them through fp32, some megabytes at a time. Hashes of the file were looked at by then (Engine::load). A
// tensor that is missing or does not fit is a UserError.
void convert_moments(Engine& engine, const io::SafetensorsReader& file);

}  // namespace redline::model
