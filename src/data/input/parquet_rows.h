// One column of a Parquet file: its rows in order, from any row on. A few threads decode row groups ahead, and the
// reader gets the rows as if one thread had done it all.
#pragma once

#include <cstdint>
#include <memory>

#include "base/files.h"
#include "data/input/text_input.h"

namespace redline::data {

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
