// One column of a Parquet file, its rows in their order from any of them on. Row groups are decoded ahead by a few
// threads; whoever reads gets them as if one thread had done it all.
#pragma once

#include <cstdint>
#include <memory>

#include "base/files.h"
#include "data/input/text_input.h"

namespace redline::data {

class ParquetRows {
 public:
  // Reads the footer. A UserError where the file is none of Parquet, is cut short or has no such text (NoSuchField).
  ParquetRows(const Path& path, const InputFormat& format);
  ~ParquetRows();

  std::int64_t rows() const;
  std::int64_t row() const;     // that next() gives first
  void seek(std::int64_t row);  // at most rows()

  // Fills `block` but for its file: at least one row unless it is the end (false). What is damaged is a UserError;
  // rows before it have been given.
  bool next(TextBlock& block, std::int64_t target_bytes, std::int64_t most_documents);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace redline::data
