// The Parquet module, loaded when the first such file is met: the program itself needs no library of Arrow.
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

// The same where a file needs it. A UserError that says how to write `file` as .jsonl where there is no module.
const RedlineParquet& require_parquet_library(const Path& file, const std::string& column);

}  // namespace redline::data
