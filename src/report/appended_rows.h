// Files of one JSON object a line that a run adds to over its whole life, resumes included.
#pragma once

#include <memory>

#include "base/files.h"

namespace redline::report {

// Opens for appending. A last line that a kill tore goes first, so that the next row begins a line of its own.
std::unique_ptr<FileWriter> append_rows(FileSystem& files, const Path& path);

}  // namespace redline::report
