// Files of one JSON object a line that a run adds to over its whole life, resumes included.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/files.h"

namespace redline::report {

// Opens for appending. A last line that a kill tore goes first, so that the next row begins a line of its own.
std::unique_ptr<FileWriter> append_rows(FileSystem& files, const Path& path);

// How a row begins that belongs to a step.
inline constexpr std::string_view kStepRowStart = "{\"step\":";

// Leaves the whole rows of steps up to `last_step`, where there is a file. A row that a crash tore goes, and all that
// follows it.
void cut_back(FileSystem& files, const Path& path, std::int64_t last_step);

}  // namespace redline::report
