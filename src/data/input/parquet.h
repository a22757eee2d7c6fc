// One column of a Parquet file: its rows in order, from any row on. The module that reads such files is loaded for the
// first of them: the program itself does not need Arrow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/files.h"
#include "data/input/text_input.h"
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

class ParquetRows {
 public:
  // Reads the footer. A UserError where the file is not Parquet, is cut short or has no such column (NoSuchField).
  ParquetRows(const Path& path, const InputFormat& format);
  ~ParquetRows();

  std::int64_t rows() const;
  std::int64_t row() const;     // the next one of next()
  void seek(std::int64_t row);  // at most rows()

  // Fills `block` but for its file: at least one row unless it is the end (false). Damage is a UserError, after the
  // rows before it were given.
  bool next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
