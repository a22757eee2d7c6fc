// The Parquet module, loaded for the first such file: the program itself does not need Arrow.
#pragma once

#include <string>

#include "base/files.h"
#include "data/parquet/interface.h"

namespace redline::data {

bool is_parquet(const Path& path);  // by its name

struct ParquetLibrary {
  const RedlineParquet* functions = nullptr;
  std::string problem;  // why it is not there; empty: it is
};

// redline-parquet.so from the program's own folder, or from lib/redline beside it.
const ParquetLibrary& parquet_library();

// The same for a file that needs it. Without the module, a UserError that says how to write `file` as .jsonl.
const RedlineParquet& require_parquet_library(const Path& file, const std::string& column);

}  // namespace redline::data
